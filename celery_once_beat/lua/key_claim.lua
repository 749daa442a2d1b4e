-- key_claim: somebody takes the right to publish the message of a keyed window. Stands without the prelude.
--
-- KEYS[1] claim key   KEYS[2] run key
-- ARGV[1] who asks, a name used for this claim alone   ARGV[2] publish_timeout ms
-- ARGV[3] absent, or where it is to be the window of now its start   ARGV[4] its end, 0: none; server ms
--
-- returns {'claimed'}   publish it, then confirm; who doesn't in time leaves it to the next caller
--         {'taken'}     another has published it, or does so now, or it has begun
--         {'elsewhen', now}   it is not the window of now, server ms; only where ARGV[3] is there
--
-- Both keys are strings, SET NX PX. The run key is begin's: a message that was published by somebody who died before
-- the confirm may have begun already.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[3] and (now < tonumber(ARGV[3]) or ARGV[4] ~= '0' and now >= tonumber(ARGV[4])) then
  return {'elsewhen', string.format('%.0f', now)}
end
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- the reply to this claim was lost
  return {'claimed'}
end
local run = redis.call('GET', KEYS[2])
if run and not (string.match(run, '^run:') or string.match(run, '^wait:') or string.match(run, '^done:')) then
  return redis.error_reply('BADDATA ' .. KEYS[2] .. ' is neither run:, wait: nor done:')
end
if run then
  return {'taken'}
end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and {'claimed'} or {'taken'}
