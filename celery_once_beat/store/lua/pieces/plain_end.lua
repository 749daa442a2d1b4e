-- The end of a window, but for what features do who want to know of it: see the hook wants_close.

-- include: entry, records, run, window
-- hooks: on_end

-- Whether an outcome counts for the present definition.
local function counts(start)
  local since = entry.since or entry.born
  return entry.cursor and since and since < start and start <= entry.cursor
end

-- `ran`: for how long, ms; nil where its execution didn't report its end. `on_closed` is the hook on_close, nil if no
-- feature wants it. Of other windows of the entry the run key isn't the script's.
local function end_window(window, outcome, owner, ran, on_closed)
  local start = window.start
  local name = (window.backfill == 0 and counts(start) and 'c:' or 'x:') .. outcome
  local counted = int(check_count(name) + 1)
  redis.call('ZREM', OPEN, member_of(start))
  redis.call('HDEL', ENTRY, 'w:' .. start)
  if start == START then
    mark_done(owner, outcome, not is_behind_cursor())
  end
  local fields = {name, counted}
  if outcome == 'done' and start > (entry.last_done or '') then
    fields = {name, counted, 'last_done', start}
  end
  on_end(window, fields, ran)
  if on_closed then
    on_closed(start, window, outcome)
  end
  redis.call('HSET', ENTRY, unpack(fields))
  keep_entry()
  remember(window, outcome, owner)
end
