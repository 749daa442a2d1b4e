-- backfill: a window is opened once more, by order. The cursor stays; its outcome is counted apart.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)   KEYS[5] claim key
-- ARGV[6] who orders it: a beat's name, or another that is used for this order alone   ARGV[7] publish_timeout ms
--
-- returns {'claimed', turn, expires, now}   publish it, then confirm with that turn, which is 1; expires is '0': never;
--                now is when it was ordered, server ms
--         {'open'}       it still owes its outcome, or runs; nothing changes
--         {'unknown'}    no such entry
--         {'newer', version}

if not entry.cursor then
  return {'unknown'}
end
local kind = settle()
if is_open() then
  local window = read_window()
  if window.backfill == 1 and window.beat == ARGV[6] and window.turn == 1 and not kind then
    -- The reply to this one's order was lost.
    touch_entry()
    return {'claimed', 1, '0', int(window.claimed)}
  end
  return {'open'}
end
if kind and kind ~= 'done' then
  return {'open'}
end
redis.call('DEL', RUN)
redis.call('SET', KEYS[5], ARGV[6], 'PX', MARKER_TTL)
local window = new_window(ARGV[6], 0)
window.backfill = 1
write_window(window, NOW + ARGV[7])
return {'claimed', 1, '0', int(NOW)}
