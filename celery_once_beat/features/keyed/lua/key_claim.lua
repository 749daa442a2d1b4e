-- key_claim: somebody takes the right to publish the message of a keyed window. CLAIMANT is a name for this claim alone.
--
-- returns {'claimed'}   publish it, then confirm. Others may claim it too until somebody has confirmed: who claimed may be
--                       dead, and the worker refuses a second copy
--         {'taken'}     its message went out, or it has begun
--         {'elsewhen', now}   with NOW_ONLY: the server's time (ms) lies outside of the window
--
-- The claim key says <claimant> for no longer than a publish may take, then sent:<claimant>. The run key is begin's: a message
-- may have begun whose publisher died before the confirm.

-- include: before_all, run

local elsewhen = keyed_before_all()
if elsewhen then
  return elsewhen
end
local claim = redis.call('GET', CLAIM)
-- If it is this claimant's, the reply to its claim was lost.
if claim ~= CLAIMANT and (run_state() or claim and string.match(claim, '^sent:')) then
  return {'taken'}
end
redis.call('SET', CLAIM, CLAIMANT, 'PX', PUBLISH_TIMEOUT)
return {'claimed'}
