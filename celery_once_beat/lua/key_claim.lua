-- key_claim: somebody takes the right to publish the message of a keyed window. Stands without the prelude.
--
-- KEYS[1] claim key   KEYS[2] run key
-- ARGV[1] who asks, a name used for this claim alone   ARGV[2] publish_timeout ms
--
-- returns {'claimed'}   publish it, then confirm; who doesn't in time leaves it to the next caller
--         {'taken'}     another has published it, or does so now, or it has begun
--
-- Both keys are strings, SET NX PX. The run key is begin's: a message that was published by somebody who died before
-- the confirm may have begun already.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- the reply to this claim was lost
  return {'claimed'}
end
if redis.call('GET', KEYS[2]) then
  return {'taken'}
end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and {'claimed'} or {'taken'}
