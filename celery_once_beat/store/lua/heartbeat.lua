-- heartbeat: a beat says that it lives, and learns the time and who else does. This is for people, and for what beats warn
-- of; scripts go by what beats say in each shard, see sweep.lua.
--
-- WHAT is 'lives', 'leaves' (it ends), or 'looks' (it only asks, and nothing changes). REPORT is what it says of
-- itself, for people, '' for nothing new.
--
-- returns {seconds, microseconds, beat...}   the server's time as two texts; then each beat alive

-- include: now, values

local now, gone = int(NOW), int(NOW - BEAT_TTL)

-- pcall: reports are for people only, and a foreign key in their place must not stop a beat.
local function forget(beat)
  redis.call('ZREM', BEATS, beat)
  redis.pcall('HDEL', REPORTS, beat)
end

if WHAT ~= 'looks' then
  -- A time in the future: the server's clock went back. It counts as now: living beats stay, others expire as soon as ever.
  for _, beat in ipairs(redis.call('ZRANGEBYSCORE', BEATS, '(' .. now, '+inf')) do
    redis.call('ZADD', BEATS, now, beat)
  end
  for _, beat in ipairs(redis.call('ZRANGEBYSCORE', BEATS, '-inf', gone)) do
    forget(beat)
  end
end
if WHAT == 'lives' then
  redis.call('PEXPIRE', BEATS, BEAT_TTL) -- first what needs no memory: a full server takes no beat for gone
  redis.call('ZADD', BEATS, now, BEAT)
  redis.call('PEXPIRE', BEATS, BEAT_TTL)
  if REPORT ~= '' then
    redis.pcall('HSET', REPORTS, BEAT, REPORT)
    redis.call('PEXPIRE', REPORTS, BEAT_TTL)
  end
elseif WHAT == 'leaves' then
  forget(BEAT)
end
local reply = {TIME[1], TIME[2]}
for _, beat in ipairs(redis.call('ZRANGEBYSCORE', BEATS, '(' .. gone, '+inf')) do
  reply[#reply + 1] = beat
end
return reply
