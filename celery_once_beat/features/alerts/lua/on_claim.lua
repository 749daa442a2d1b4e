-- include: entry
-- keys: late
-- numbers: deadline

local function alerts_on_claim()
  if entry.deadline and entry.deadline > 0 then
    redis.pcall('ZADD', LATE, STARTS_AT + entry.deadline, MEMBER)
    keep(LATE)
  end
end
