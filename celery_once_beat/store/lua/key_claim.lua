-- key_claim: somebody takes the right to publish the message of a keyed window. Stands without the prelude.
--
-- KEYS[1] claim key   KEYS[2] run key
-- ARGV[1] who asks, a name used for this claim alone   ARGV[2] publish_timeout ms
-- ARGV[3] absent, or where it is to be the window of now its start   ARGV[4] its end, 0: none; server ms
--
-- returns {'claimed'}   publish it, then confirm. So may others until somebody has confirmed: who claimed may be dead,
--                       and the worker refuses what is a copy
--         {'taken'}     its message went out, or it has begun
--         {'elsewhen', now}   it is not the window of now, server ms; only where ARGV[3] is there
--
-- Both keys are strings. The claim key says <claimant> for no longer than a publish may take, then sent:<claimant>.
-- Earlier versions wrote <claimant> for both: there only the time that it has left tells them apart. The run key is
-- begin's: a message that was published by somebody who died before the confirm may have begun already.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[3] and (now < tonumber(ARGV[3]) or ARGV[4] ~= '0' and now >= tonumber(ARGV[4])) then
  return {'elsewhen', string.format('%.0f', now)}
end
local claim = redis.call('GET', KEYS[1])
if claim ~= ARGV[1] then -- else the reply to this claim was lost
  local run = redis.call('GET', KEYS[2])
  if run and not (string.match(run, '^run:') or string.match(run, '^wait:') or string.match(run, '^done:')) then
    return redis.error_reply('BADDATA ' .. KEYS[2] .. ' is neither run:, wait: nor done:')
  end
  local left = redis.call('PTTL', KEYS[1])
  if run or claim and (string.match(claim, '^sent:') or left < 0 or left > tonumber(ARGV[2])) then
    return {'taken'}
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {'claimed'}
