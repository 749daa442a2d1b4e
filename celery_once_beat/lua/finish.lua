-- finish: a worker records how its execution ended.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] owner   ARGV[7] fence   ARGV[8] outcome: done, failed or revoked
-- ARGV[9] ms after which the same window runs again, 0 to close it   ARGV[10] tracked 1 or 0
--
-- returns {'finished'}   recorded
--         {'again'}      it stays open, to run again later
--         {'stale'}      another began since, or closed it: nothing was recorded
--         {'newer', version}

local OWNER, OUTCOME, AGAIN = ARGV[6], ARGV[8], tonumber(ARGV[9])
local kind, owner = settle()
local open = is_open()
if kind == 'done' then
  if owner ~= OWNER then
    return {'stale'}
  end
  redis.call('PEXPIRE', RUN, math.max(redis.call('PTTL', RUN), 1)) -- a write, for WAIT to wait for
  return {'finished'}
end
if not hold(OWNER, ARGV[7], ARGV[10] == '1') then
  if open then
    local window = read_window()
    if window.owner == OWNER and window.released == 2 and not kind then
      return {'again'}
    end
  end
  return {'stale'}
end
if not open then
  mark_done(OWNER, OUTCOME, true)
  return {'finished'}
end
local window = read_window()
local most = tonumber(redis.call('HGET', ENTRY, 'max_attempts') or math.huge)
if AGAIN > 0 and window.attempts < most then
  redis.call('DEL', RUN)
  -- Its own retries are its again too.
  window.released, window.retry, window.publishes, window.turn = 2, 0, 0, window.turn + 1
  write_window(window, NOW + AGAIN)
  return {'again'}
end
close_window(window, OUTCOME, OWNER)
return {'finished'}
