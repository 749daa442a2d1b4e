-- free_slots: a beat's sweep asks which windows it is to call, since there are slots of a limit for them. MOST is how many
-- there are, as its settings say.
--
-- returns {waiting, window...}   how many windows wait; those to call: make_due says whether they still wait. No more than
--                                there are slots for, with those that were called and are yet to come

-- include: limit, values

-- How long (ms) it is counted on that they come.
local COMES_WITHIN = 2000

forget_dead()
local waiting = redis.call('ZCARD', WAITING)
local called = redis.call('ZCARD', CALLED)
local free = math.min(MOST, whole(redis.call('GET', FEWEST) or '') or MOST) - redis.call('ZCARD', SLOTS) - called
if waiting == 0 or free <= 0 then
  return {waiting}
end
local reply = {waiting}
for _, window in ipairs(redis.call('ZRANGE', WAITING, 0, math.min(free, 100) - 1)) do
  redis.call('ZADD', CALLED, redis.call('ZSCORE', WAITING, window), window)
  reply[#reply + 1] = window
end
if called == 0 then
  redis.call('PEXPIRE', CALLED, COMES_WITHIN)
end
return reply
