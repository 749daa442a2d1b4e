-- finish: a worker records how its execution ended: done, failed or revoked. A worker's main process that ends its
-- child's window sends fence 0. Sent again, it answers as it did the first time, for as long as the run key lasts.
--
-- AGAIN: how long (ms) after a failure the task has its window run again, up to max_attempts executions; the entry's own
-- value replaces it. 0: the task has none. nil: it doesn't run again, whatever the entry says.
--
-- FAILURE: the failure's text for people, '' for none. RETURNED: the body had returned, and what follows it failed.
--
-- returns 'finished'     the outcome is recorded
--         {'again', ms}  it stays open, to run again so much later
--         'stale'        another began since, or closed it: nothing was recorded. The same if it was handed over, since
--                        the retry finishes it, unless OUTCOME is revoked

-- include: entry, plain_end, run, window
-- hooks: wants_close

local kind, owner, detail = run_state()
local window = read_window()
-- Most windows end here; see begin.
if kind == 'run' and owner == OWNER and window and not AGAIN and FAILURE == '' and not wants_close() then
  end_window(window, OUTCOME, OWNER, NOW - window.fence)
  return 'finished'
end

-- include: ends, hold, newest
-- hooks: on_end_alone, on_release

if kind == 'done' then
  if owner ~= OWNER then
    return 'stale'
  end
  redis.call('PEXPIRE', RUN, math.max(redis.call('PTTL', RUN), 1)) -- a write, for WAIT to wait for
  return 'finished'
end
local standing = hold(kind, owner)
local was_to_run_again = window and not kind and (window.state == 'again' or window.state == 'again_due')
if was_to_run_again and is_owner(window.owner) then
  touch_entry()
  return {'again', int(math.max(window.deadline - NOW, 0))} -- the reply to its finish was lost
end
local later = standing and on_end_alone(standing, detail)
if later then
  return {'again', int(later)}
end
if not standing or standing == 'wait' and OUTCOME ~= 'revoked' then
  return 'stale'
end
if not window then
  redis.call('DEL', RUN) -- frees memory first
  mark_done(OWNER, OUTCOME, true)
  return 'finished'
end
local again = AGAIN and (entry.retry_failed_after or AGAIN) or 0
local runs_again = again > 0 and window.attempts < entry.max_attempts
if runs_again then
  redis.call('DEL', RUN)
  -- The next run gets its full retries back.
  window.state, window.retry, window.revision = 'again', 0, window.revision + 1
  window.publishes, window.message = 0, 'none' -- a beat may have taken it while its lease was over
  write_window(window, NOW + again)
  on_release()
else
  window.failure, window.returned = FAILURE, RETURNED
  close_window(window, OUTCOME, OWNER, NOW - window.fence)
end
-- Texts of the entry's last ten failures, display only. pcall: a foreign key in their place must not block an end.
if FAILURE ~= '' and type(redis.pcall('HSET', FAILURES, START, FAILURE)) == 'number' then
  keep_newest(FAILURES, 10)
end
return runs_again and {'again', int(again)} or 'finished'
