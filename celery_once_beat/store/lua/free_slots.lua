-- free_slots: a beat's sweep asks which windows it is to call, since there are slots of a limit for them. MOST is how many
-- there are, as its settings say.
--
-- returns {waiting, window...}   how many windows wait; those to call: make_due says whether they still wait. None while
--                                windows that were called are yet to come

-- include: limit, values

-- How long (ms) nobody else is called, unless one comes before.
local COMES_WITHIN = 2000

forget_dead()
local waiting = redis.call('ZCARD', WAITING)
local free = math.min(MOST, whole(redis.call('GET', FEWEST) or '') or MOST) - redis.call('ZCARD', SLOTS)
if waiting == 0 or free <= 0 or not redis.call('SET', CALLED, '1', 'NX', 'PX', COMES_WITHIN) then
  return {waiting}
end
return {waiting, unpack(redis.call('ZRANGE', WAITING, 0, math.min(free, 100) - 1))}
