-- include: entry
-- fields: waits

-- Others wait in line for its end.
local function admission_wants_close()
  return entry.waits
end
