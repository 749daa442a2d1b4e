-- heartbeat: a beat reports that it lives, and learns the time and who else does. It serves readers and the warnings of
-- beats; scripts go by each shard's own list, see sweep.lua.
--
-- LIVES: it does; else it only asks, and nothing changes. REPORT is its report on itself, display only.
--
-- returns {seconds, microseconds, beat...}   the server's time as two texts; then each beat alive

-- include: now, values

local now, gone = int(NOW), int(NOW - BEAT_TTL)

if LIVES then
  -- A time in the future: the server's clock went back. It counts as now: living beats stay, others expire as soon as ever.
  for _, beat in ipairs(redis.call('ZRANGEBYSCORE', BEATS, '(' .. now, '+inf')) do
    redis.call('ZADD', BEATS, now, beat)
  end
  for _, beat in ipairs(redis.call('ZRANGEBYSCORE', BEATS, '-inf', gone)) do
    redis.call('ZREM', BEATS, beat)
    redis.pcall('HDEL', REPORTS, beat) -- for people only: a foreign key in their place must not stop a beat
  end
  redis.call('PEXPIRE', BEATS, BEAT_TTL) -- first what needs no memory: a full server takes no beat for gone
  redis.call('ZADD', BEATS, now, BEAT)
  redis.call('PEXPIRE', BEATS, BEAT_TTL)
  redis.pcall('HSET', REPORTS, BEAT, REPORT)
  redis.call('PEXPIRE', REPORTS, BEAT_TTL)
end
return {TIME[1], TIME[2], unpack(redis.call('ZRANGEBYSCORE', BEATS, '(' .. gone, '+inf'))}
