-- The end of a window, but for what features do who want to know of it: see the hook wants_close.

-- include: entry, records, run
-- hooks: on_end

-- Whether an outcome counts for the present definition.
local function counts(start)
  local since = entry.since or entry.born
  return entry.cursor and since and since < start and start <= entry.cursor
end

-- `ran`: for how long, ms; nil where its execution didn't report its end. `tell` is on_close, nil if nobody wants that.
local function end_window(window, outcome, owner, ran, tell)
  local name = (window.backfill == 0 and counts(START) and 'c:' or 'x:') .. outcome
  local counted = int(check_count(name) + 1)
  make_room()
  redis.call('ZREM', OPEN, MEMBER)
  redis.call('HDEL', ENTRY, 'w:' .. START)
  mark_done(owner, outcome, not is_behind_cursor())
  local fields = {name, counted}
  if outcome == 'done' and START > (entry.last_done or '') then
    fields = {name, counted, 'last_done', START}
  end
  on_end(window, fields, ran)
  if tell then
    tell(START, window, outcome)
  end
  redis.call('HSET', ENTRY, unpack(fields))
  keep_entry()
  local by = window.backfill == 1 and string.match(window.beat, '^[^:]*') .. ':order' or window.beat
  -- Who ran it last, whoever ends it.
  local ran_by = window.fence > 0 and window.owner or owner
  -- A fence is the time of its begin; see protocol.py.
  remember(START, outcome, window.claimed, window.fence - window.claimed, NOW - window.claimed, window.attempts, by,
    ran_by)
end
