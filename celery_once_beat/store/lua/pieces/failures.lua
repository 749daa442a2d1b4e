-- What the last failures of an entry said, for people: FAILURES has for the start of a window the text of its last failure.
-- It lives as long as the entry.
--
-- Display only: pcall, since a foreign key in its place must stop no end.

-- include: entry

local MOST_FAILURES = 10

local function remember_failure()
  local key = FAILURES[1]
  if type(redis.pcall('HSET', key, START, FAILURE)) ~= 'number' then
    return
  end
  redis.call('PEXPIRE', key, entry.ttl)
  local starts = redis.call('HKEYS', key)
  table.sort(starts)
  for position = 1, #starts - MOST_FAILURES do
    redis.call('HDEL', key, starts[position])
  end
end
