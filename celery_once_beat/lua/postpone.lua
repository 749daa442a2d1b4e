-- postpone: an overdue window of an entry that no beat knows here is put off, so that it doesn't hide what comes
-- behind it; once nothing is known of its entry, it is forgotten.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)   ARGV[6] ms to put it off
--
-- returns {'postponed'} | {'forgotten'} | {'no'}: it isn't overdue | {'newer', version}

local deadline = redis.call('ZSCORE', OPEN, MEMBER)
if not deadline or tonumber(deadline) > NOW then
  return {'no'}
end
if not entry.cursor then
  redis.call('ZREM', OPEN, MEMBER)
  return {'forgotten'}
end
redis.call('ZADD', OPEN, int(NOW + ARGV[6]), MEMBER)
return {'postponed'}
