-- postpone: an overdue window of an entry that no beat knows is put off, so that it doesn't hide what comes behind
-- it; once nothing is known of its entry, it is forgotten.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)   ARGV[6] ms to put it off
-- ARGV[7...] the other beats alive: what one of them has loaded is for that one to take (a rolling deploy with a
-- new entry, two apps that share a prefix)
--
-- returns {'postponed'} | {'forgotten'} | {'no'}: it isn't overdue, or another's | {'newer', version}

local deadline = redis.call('ZSCORE', OPEN, MEMBER)
if not deadline or tonumber(deadline) > NOW then
  return {'no'}
end
if not entry.cursor then
  redis.call('ZREM', OPEN, MEMBER)
  return {'forgotten'}
end
local alive = {}
for position = 7, #ARGV do
  alive[ARGV[position]] = true
end
for beat in string.gmatch(redis.call('HGET', ENTRY, 'loaders') or '', '(%S+) %S+ %d+') do
  if alive[beat] then
    return {'no'}
  end
end
redis.call('ZADD', OPEN, int(NOW + ARGV[6]), MEMBER)
return {'postponed'}
