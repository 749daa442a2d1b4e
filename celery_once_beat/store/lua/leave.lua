-- leave: an execution gives its place of a limit back. OWNER is it, or its delivery. FORGET: its window waits no longer; with
-- ONLY_LATE, unless a place is kept for it. CALL is this call's own: sent again, it answers the same.
--
-- A beat asks with no WINDOW: the dead have given back their places by then.
--
-- returns {'left', called...}   called are the windows that have waited longest, for which places are free; for a beat also
--                               those that were called before, and should have come

local NOW = server_time()
forget_dead()
local place, owner = place_of(WINDOW)
if place and (owner == OWNER or string.sub(owner, 1, #OWNER + 1) == OWNER .. ':') then
  redis.call('ZREM', PLACES, place)
end
if FORGET and not (ONLY_LATE and (redis.call('ZSCORE', CALLED, WINDOW) or 0) + 0 > NOW) then
  redis.call('ZREM', WAITING, WINDOW)
  not_called()
end
local reply = {'left'}
if redis.call('EXISTS', WAITING) == 1 then
  tell_again(reply)
  call_waiting(reply)
  if WINDOW == '' then
    tell_a_beat(reply)
  end
  keep_limit()
end
return reply
