-- free_slots: a beat asks which windows to call. MOST: how many slots there are by its settings.
--
-- returns {waiting, window...}   how many wait, then those to call; make_due checks that each still waits. For a free slot
--                               no second window is called while the first may still come; but whoever asks first gets it

-- include: now, values

-- How long (ms) a called window may take to come.
local COMES_WITHIN = 2000

redis.call('ZREMRANGEBYSCORE', SLOTS, '-inf', NOW)
local waiting = redis.call('ZCARD', WAITING)
local called = redis.call('ZCARD', CALLED)
local free = math.min(MOST, whole(redis.call('GET', FEWEST) or '') or MOST) - redis.call('ZCARD', SLOTS) - called
local reply = {waiting}
local first = free > 0 and redis.call('ZRANGE', WAITING, 0, math.min(free, 100) - 1) or {}
for _, window in ipairs(first) do
  redis.call('ZADD', CALLED, redis.call('ZSCORE', WAITING, window), window)
  reply[#reply + 1] = window
end
if called == 0 then
  redis.call('PEXPIRE', CALLED, COMES_WITHIN)
end
return reply
