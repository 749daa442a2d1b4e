-- enter: a worker takes a place of a limit for LENGTH ms, before it begins a window. MOST is how many there are, as this worker's
-- settings say. CALL is this call's own: sent again, it answers the same.
--
-- PARKED: begin has said that it waits, and its message lies ready. Before that it may have been called while nobody could
-- publish it; or a caller found that it didn't wait yet, and took it out of those that wait. It takes no place here, but is
-- called like any other: if it took one and its worker were killed before the begin, nobody would know that it waits.
--
-- returns {'entered', called...}   begin it; called are the windows that have waited longest, for which places are free
--         {'shared', called...}    another execution of the window has a place, alive or dead: begin says which. If it
--                                  begins, stay makes the place its own
--         {'waits', called...}     there is none: the window is called once there is

local NOW, TIME = server_time()
forget_dead()
local function waits()
  redis.call('ZADD', WAITING, 'NX', TIME[1] * 1000000 + TIME[2], WINDOW)
end
if PARKED then
  waits()
end
local place, owner = place_of(WINDOW)
if place then
  redis.call('ZADD', PLACES, 'GT', NOW + LENGTH, place)
  keep_limit()
  local reply = {owner == OWNER and 'entered' or 'shared'}
  tell_again(reply)
  return reply
end
local reply = {'entered'}
tell_again(reply)
if PARKED then
  reply[1] = 'waits'
  if redis.call('ZSCORE', CALLED, WINDOW) then
    reply[#reply + 1] = WINDOW
  else
    call_waiting(reply)
  end
  keep_limit()
  return reply
end
local free = free_places()
if free > 0 and not redis.call('ZSCORE', CALLED, WINDOW) then
  call_waiting(reply, WINDOW)
  free = free - kept_places()
end
if free > 0 then
  redis.call('ZREM', WAITING, WINDOW)
  not_called()
  redis.call('ZADD', PLACES, NOW + LENGTH, OWNER .. ' ' .. WINDOW)
else
  reply[1] = 'waits'
  not_called()
  waits()
  redis.call('HSET', CALLS, 'fewest', int(MOST) .. ' ' .. int(NOW))
end
keep_limit()
return reply
