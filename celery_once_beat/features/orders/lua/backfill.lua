-- backfill: a window is opened once more, by order. The cursor stays, and the outcome is counted apart.
-- It is overdue in OVERDUE_IN ms, unless it is confirmed before. With WAITS it also waits for a beat that loads the entry.
--
-- returns {'claimed', revision, expires, now}   publish it, then confirm with that revision, which is 1; expires is '0': never;
--                now is when it was ordered, server ms. The same answer where the reply to this order was lost
--         {'open'}       it still owes its outcome, or runs; nothing changes
--         {'unknown'}    no such entry

-- include: entry, run, window

if not entry.cursor and not WAITS then
  return {'unknown'}
end
local kind = run_state()
local window = read_window()
if window and window.backfill == 1 and window.beat == BEAT and window.revision == 1 and not kind then
  touch_entry()
  return {'claimed', 1, '0', window.claimed}
end
if window or kind and kind ~= 'done' then
  return {'open'}
end
redis.call('DEL', RUN)
redis.call('SET', CLAIM, BEAT, 'PX', MARKER_TTL)
window = new_window(BEAT, 0)
window.backfill = 1
write_window(window, NOW + OVERDUE_IN)
return {'claimed', 1, '0', int(NOW)}
