-- acquire_slot: a worker takes a slot of a limit for LENGTH ms, before it begins a window. MOST is how many there are, as this
-- worker's settings say. Sent again by the same owner, it answers the same.
--
-- returns {'acquired'}   begin it
--         {'shared'}     another execution of the window has a slot, alive or dead: begin says which. If it begins, renew_slot
--                        makes the slot its own
--         {'full'}       there is none: begin lets the window wait, and a beat calls it

-- include: limit, now, values

-- For this long (ms) beats use the smaller limit of a worker that found no slot. With their own larger number they
-- would call the same windows at each look, and that worker would make them wait again.
local FEWEST_FOR = 60000

redis.call('ZREMRANGEBYSCORE', SLOTS, '-inf', NOW) -- needs no memory, for a full server
local asked = redis.call('ZSCORE', CALLED, WINDOW)
redis.call('ZREM', CALLED, WINDOW)
local slot, owner = slot_of(WINDOW)
local answer = 'acquired'
if slot then
  redis.call('ZADD', SLOTS, 'GT', NOW + LENGTH, slot)
  answer = owner == OWNER and 'acquired' or 'shared'
elseif redis.call('ZCARD', SLOTS) < MOST then
  redis.call('ZREM', WAITING, WINDOW)
  redis.call('ZADD', SLOTS, NOW + LENGTH, OWNER .. ' ' .. WINDOW)
else
  redis.call('ZADD', WAITING, 'NX', asked or TIME[1] * 1000000 + TIME[2], WINDOW)
  redis.call('SET', FEWEST, int(MOST), 'PX', FEWEST_FOR)
  answer = 'full'
end
redis.call('PEXPIRE', SLOTS, DAY)
redis.call('PEXPIRE', WAITING, DAY)
return {answer}
