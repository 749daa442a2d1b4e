-- free_slots: a beat's sweep asks which windows it is to call, since there are slots of a limit for them. MOST is how many
-- there are, as its settings say.
--
-- returns {waiting, window...}   how many windows wait; those to call: make_due says whether they still wait. None while
--                                windows that were called are yet to come

-- How long (ms) nobody else is called, unless all of them come before.
local COMES_WITHIN = 2000

local NOW = server_time()
forget_dead()
local waiting = redis.call('ZCARD', WAITING)
local free = math.min(MOST, whole(redis.call('GET', FEWEST) or '') or MOST) - redis.call('ZCARD', SLOTS)
if waiting == 0 or free <= 0 or redis.call('ZCARD', CALLED) > 0 then
  return {waiting}
end
local reply = {waiting}
for _, window in ipairs(redis.call('ZRANGE', WAITING, 0, math.min(free, 100) - 1)) do
  redis.call('ZADD', CALLED, redis.call('ZSCORE', WAITING, window), window)
  reply[#reply + 1] = window
end
redis.call('PEXPIRE', CALLED, COMES_WITHIN)
return reply
