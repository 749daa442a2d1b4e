-- close: a worker's main process reports that a message was discarded before its task could see it.
--
-- OUTCOME is expired or revoked; 'unknown' if the worker doesn't know the task. EXPIRES is when the message did, server ms,
-- if it has an expiry of its own: a retry may.
--
-- returns {'closed', outcome}   recorded, now or when this was sent before
--         {'unchanged'}   it runs, or waits for another retry; an execution of it died, which is for recovery; or it is
--                         closed already, and perhaps ordered since
--         {'sooner'}      the task is unknown, or the worker's clock is ahead and nothing has expired by the server's: it
--                         stays open, and is overdue soon, in doubling steps up to PUBLISH_TIMEOUT, or an eighth of its age;
--                         the next copy may meet another worker
-- An unknown task of an untracked window is noted for people, and the answer is 'unchanged': nobody publishes it again.

-- include: ends, entry, run, window

local kind, owner = run_state()
local window = read_window()
if not window then
  if OUTCOME == 'unknown' and not kind and entry.cursor then
    touch_entry()
    redis.call('HSET', ENTRY, 'discarded', int(NOW) .. ' ' .. OWNER)
  end
  if kind ~= 'done' or owner ~= OWNER then
    return {'unchanged'}
  end
  return {'closed', OUTCOME}
end
if BY_SCHEDULE and window.backfill == 1 then
  return {'unchanged'}
end
local too_early = OUTCOME == 'expired' and NOW < (EXPIRES or tonumber(window.expires))
if OUTCOME == 'unknown' or too_early then
  -- No message is out for a window that runs, died, or is to run again later: a late copy was discarded.
  if kind == 'run' or window.publishes == 0 or window.retry ~= RETRY then
    return {'unchanged'}
  end
  local longest = math.max(PUBLISH_TIMEOUT, (NOW - window.claimed) / 8) -- the older the window, the longer
  local soon = math.min(1000 * 2 ^ math.min(window.publishes - 1, 30), longest)
  if kind == 'wait' then
    soon = redis.call('PTTL', RUN) + MARGIN
  end
  -- The beat that published it may confirm only now: that would put it off.
  window.revision, window.message = window.revision + 1, 'sent'
  local by_whom = too_early and {} or {'discarded', int(NOW) .. ' ' .. OWNER}
  write_window(window, math.min(NOW + soon, window.deadline), unpack(by_whom))
  return {'sooner'}
end
-- An execution that died is for recovery; but one that was revoked would be discarded each time that it comes.
local idle = not kind and (window.fence == 0 or window.state == 'retry' or OUTCOME == 'revoked')
if (idle or kind == 'wait') and window.retry == RETRY then
  close_window(window, OUTCOME, OWNER)
  return {'closed', OUTCOME}
end
return {'unchanged'}
