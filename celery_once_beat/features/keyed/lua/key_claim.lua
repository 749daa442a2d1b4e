-- key_claim: somebody asks for the right to publish the message of a keyed window. Nothing is written: until a message is
-- confirmed to be out everybody has that right, since whoever had it first may be dead. The worker refuses a second copy.
--
-- returns {'claimed'}   publish it, then confirm
--         {'taken'}     its message went out, or it has begun
--         {'elsewhen', now}   with NOW_ONLY: the server's time (ms) lies outside of the window
--
-- The claim key is there once somebody has confirmed. The run key is begin's: a message may have begun whose publisher died
-- before the confirm.

-- include: before_all, run

local elsewhen = keyed_before_all()
if elsewhen then
  return elsewhen
end
local taken = run_state() or redis.call('EXISTS', CLAIM) == 1
return {taken and 'taken' or 'claimed'}
