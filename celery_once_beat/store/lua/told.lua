-- told: a beat has said the notice that it took with that turn. It is said then, also where another beat has taken it
-- meanwhile, since this one took long: else two beats with slow receivers would say it by turns for ever. Sent again, it answers
-- the same.
--
-- returns {'told'}   it is said, and removed
--         {'no'}     what this beat took was another end of the window, before the one that is to be said

-- include: entry

local fields = read_fields('n:' .. START .. '!' .. KIND)
if not fields[3] then
  return {'told'}
end
local last, first = string.match(fields[3], '^%S+ (%d+) (%d+)$')
if not last or TURN < first + 0 or TURN > last + 0 then
  return {'no'}
end
redis.call('ZREM', OPEN, MEMBER .. '!' .. KIND)
redis.call('HDEL', ENTRY, 'n:' .. START .. '!' .. KIND)
if KIND ~= 'paused' and not redis.call('ZSCORE', OPEN, MEMBER .. '!' .. (KIND == 'late' and 'ended' or 'late')) then
  redis.call('HDEL', ENTRY, 'e:' .. START)
end
if KIND == 'late' and fields[2] then
  redis.pcall('HINCRBY', ENTRY, 'late', 1) -- pcall: for people only, and what is said mustn't be said again
end
return {'told'}
