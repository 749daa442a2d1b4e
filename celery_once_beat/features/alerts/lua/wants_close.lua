-- include: entry
-- fields: on_failure, streak
-- numbers: deadline, pause_after_failures

local function wants_ends()
  return (entry.on_failure or '-') ~= '-'
end

local function alerts_wants_close()
  return entry.deadline or entry.pause_after_failures or entry.streak or wants_ends()
end
