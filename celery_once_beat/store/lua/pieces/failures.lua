-- What the last failures of an entry said, for people: FAILURES has for the start of a window the text of its last failure.
-- It lives as long as the entry.
--
-- Display only: pcall, since a foreign key in its place must stop no end.

-- include: entry

local MOST_FAILURES = 10

local function remember_failure()
  if FAILURE == '' or type(redis.pcall('HSET', FAILURES, START, FAILURE)) ~= 'number' then
    return
  end
  redis.call('PEXPIRE', FAILURES, entry.ttl)
  local starts = redis.call('HKEYS', FAILURES)
  table.sort(starts)
  for position = 1, #starts - MOST_FAILURES do
    redis.call('HDEL', FAILURES, starts[position])
  end
end
