-- hand_over: a worker gives its window to the retry that it is about to publish. A retry is no death, so the attempt
-- doesn't count. Sent again, it answers the same.
--
-- returns {'handed over'}   it waits for the message with that retry number, and is overdue START_TIMEOUT after its DELAY
--         {'stale'}         another began since, it was handed over to another retry, or it has its outcome

-- include: entry, hold, run, window

local kind, owner, detail = run_state()
local standing = hold(kind, owner)
if standing == 'wait' and detail == RETRY then
  redis.call('PEXPIRE', RUN, math.max(redis.call('PTTL', RUN), 1)) -- a write, for WAIT to wait for
  return {'handed over'}
end
local window = read_window()
if window and not kind and window.state == 'retry' and window.retry == RETRY and is_owner(window.owner)
  and int(window.fence) == FENCE then
  touch_entry()
  return {'handed over'} -- the reply to this one was lost, and the run key has expired since
end
if standing ~= 'run' then
  return {'stale'}
end
-- Where it isn't open the run key alone decides, so it must outlive the wait for a worker too. From what is left of it beyond
-- that a claim knows when the retry is due.
local hold_for = DELAY + MARGIN + (window and 0 or RETENTION)
redis.call('DEL', RUN) -- frees memory first
redis.call('SET', RUN, 'wait:' .. int(RETRY) .. ':' .. OWNER, 'PX', int(hold_for))
if window then
  window.attempts = math.max(window.attempts - 1, 0)
  window.retry, window.state = RETRY, 'retry'
  window.publishes, window.message, window.revision = 1, 'none', window.revision + 1
  write_window(window, NOW + DELAY + math.max(START_TIMEOUT, MARGIN))
end
return {'handed over'}
