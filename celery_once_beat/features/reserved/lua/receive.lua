-- receive: a worker reports that it has the message of a window reserved, and reports so again before LENGTH ms are
-- over. Once its worker is dead the window is overdue. It counts no attempt and gives no right to execute. HOLDER is for
-- people: <worker>:<how many tasks it executes, '-' where a rate limit holds this one back>:<seconds that it has waited>.
-- The window's fence follows: once that is another one, somebody has begun it.
--
-- returns {'received'}    it is overdue in LENGTH
--         {'unchanged'}   it runs, waits for another retry or to run again, or it is closed, and perhaps ordered
--                         since: this copy would be refused

-- include: entry, run, waiting, window

local kind, _, detail = run_state()
local window = read_window()
if not window or kind == 'run' or kind == 'done' or kind == 'wait' and detail ~= RETRY then
  return {'unchanged'}
end
local waits_without_message = is_waiting(window) and window.message == 'none' -- this is a late copy
if RETRY < window.retry or window.state == 'again' or BY_SCHEDULE and window.backfill == 1 or waits_without_message then
  return {'unchanged'}
end
touch_entry()
-- The beat that published this copy may confirm only now: that would put it off.
window.revision = window.revision + 1
-- A first copy has left its queue, so another one doesn't make that longer: it waits for no other window of its entry.
window.message = (window.publishes <= 1 and not in_line(window)) and 'none' or 'sent'
window.queue = string.match(window.queue, '^[^@]*') .. '@' .. HOLDER .. ':' .. int(window.fence)
write_window(window, NOW + math.max(LENGTH, redis.call('PTTL', RUN)) + MARGIN)
return {'received'}
