-- heartbeat: a beat says that it lives, and learns the time and who else does. Stands without the prelude.
--
-- KEYS[1] beats zset: beat → when it was last heard of, server ms
-- KEYS[2] reports hash: beat → what it says of itself, for people
-- KEYS[3] apps hash: beat → whose it is, JSON, for people
-- ARGV[1] beat; not looked at where it only looks   ARGV[2] ms after which a silent beat counts as gone
-- ARGV[3] 'lives' | 'leaves': it ends | 'looks': only asks, and changes nothing
-- ARGV[4] what it says of itself; '': nothing new   ARGV[5] of which app it is, the same
--
-- returns {seconds, microseconds, new, beat...}   the server's time as two texts; new is 1 where this beat says that
--                                                 it lives and was not known, else 0; then each beat alive

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone = string.format('%.0f', now - ARGV[2])
local added = 0

-- What is only for people stops no beat, whatever else may be in its place: pcall.
local function forget(beat)
  redis.call('ZREM', KEYS[1], beat)
  redis.pcall('HDEL', KEYS[2], beat)
  redis.pcall('HDEL', KEYS[3], beat)
end

if ARGV[3] ~= 'looks' then
  -- Heard of at a time that is still to come: the clock went back. As if it were just now, so that who lives stays, and
  -- who doesn't is gone as soon as ever.
  for _, beat in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf')) do
    redis.call('ZADD', KEYS[1], string.format('%.0f', now), beat)
  end
  for _, beat in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', gone)) do
    forget(beat)
  end
end
if ARGV[3] == 'lives' then
  redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- first what needs no memory: a full server takes no beat for gone
  added = redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  for position = 4, 5 do
    if ARGV[position] ~= '' then
      redis.pcall('HSET', KEYS[position - 2], ARGV[1], ARGV[position])
      redis.call('PEXPIRE', KEYS[position - 2], ARGV[2])
    end
  end
elseif ARGV[3] == 'leaves' then
  forget(ARGV[1])
end
local reply = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. gone, '+inf')
for _, value in ipairs({added, time[2], time[1]}) do
  table.insert(reply, 1, value)
end
return reply
