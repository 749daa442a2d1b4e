-- finish: a worker records how its execution ended.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] owner   ARGV[7] fence that its begin was given; 0 where the caller doesn't know it, as a worker's main
-- process, which ends what its child began: then only the run key counts
-- ARGV[8] outcome: done, failed or revoked
-- ARGV[9] ms after which the same window runs again, 0 to close it; what the entry says of failures goes first; up to
-- max_attempts executions, which aren't counted of a key's window
-- ARGV[10] 1 if the message says that the window is tracked, else 0; 'keyed' for a window of a user's key
--
-- returns {'finished'}   the outcome is recorded
--         {'again', ms}  it stays open, to run again so much later
--         {'stale'}      another began since, or closed it, or it was handed over: nothing was recorded
--         {'newer', version}
-- What was handed over is the retry's to finish: a child that is killed after it hasn't failed. Only what a person
-- revokes ends here too.

local OWNER, OUTCOME, AGAIN = ARGV[6], ARGV[8], tonumber(ARGV[9])
local kind, owner, number = settle()
local open = is_open()
if kind == 'done' then
  if owner ~= OWNER then
    return {'stale'}
  end
  redis.call('PEXPIRE', RUN, math.max(redis.call('PTTL', RUN), 1)) -- a write, for WAIT to wait for
  return {'finished'}
end
local verdict = hold(OWNER, ARGV[7], ARGV[10] == '1', kind, owner, number)
if not verdict and open and not kind then
  local window = read_window()
  local is_back = window.released == TO_RUN_AGAIN or window.released == RUN_AGAIN_DUE
  if is_back and is_owner(window.owner, OWNER, ARGV[7]) then
    touch_entry()
    return {'again', int(math.max(redis.call('ZSCORE', OPEN, MEMBER) - NOW, 0))} -- the reply to its finish was lost
  end
end
if verdict == 'wait' and number == tonumber(NO_RETRY) then
  local left = math.max(redis.call('PTTL', RUN), 1)
  redis.call('PEXPIRE', RUN, left)
  return {'again', int(left)} -- the reply to this one's finish was lost
end
if not verdict or verdict == 'wait' and OUTCOME ~= 'revoked' then
  return {'stale'}
end
if not open then
  if AGAIN > 0 and ARGV[10] == 'keyed' then
    redis.call('DEL', RUN) -- frees memory first
    -- Until then no message's retry number fits.
    redis.call('SET', RUN, 'wait:' .. NO_RETRY .. ':' .. OWNER, 'PX', AGAIN)
    return {'again', int(AGAIN)}
  end
  mark_done(OWNER, OUTCOME, true)
  return {'finished'}
end
local window = read_window()
if OUTCOME == 'failed' and (entry.again or '-1') ~= '-1' then
  AGAIN = number_field('again', entry.again)
end
if AGAIN > 0 and window.attempts < entry.max_attempts then
  redis.call('DEL', RUN)
  -- Its own retries are its again too.
  window.released, window.retry, window.publishes, window.turn = TO_RUN_AGAIN, 0, 0, window.turn + 1
  write_window(window, NOW + AGAIN)
  return {'again', int(AGAIN)}
end
close_window(window, OUTCOME, OWNER)
return {'finished'}
