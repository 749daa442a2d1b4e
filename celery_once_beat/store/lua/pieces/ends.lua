-- The end of a window.

-- include: entry, records, run, window
-- hooks: on_close, on_release

-- Whether an outcome counts for the present definition.
local function counts(start)
  local since = entry.since or entry.born
  return entry.cursor and since and since < start and start <= entry.cursor
end

-- `ran`: for how long, ms; nil where its execution didn't report its end.
local function close_window(window, outcome, owner, ran)
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
  on_close(START, window, outcome, fields, ran)
  redis.call('HSET', ENTRY, unpack(fields))
  keep_entry()
  local by = window.backfill == 1 and string.match(window.beat, '^[^:]*') .. ':order' or window.beat
  -- Who ran it last, whoever ends it.
  local ran_by = window.fence > 0 and window.owner or owner
  -- A fence is the time of its begin; see protocol.py.
  remember(START, outcome, window.claimed, window.fence - window.claimed, NOW - window.claimed, window.attempts, by,
    ran_by)
  on_release()
end

-- If the run key says done but the window is open, close it now. Returns the run state.
local function settle()
  local kind, owner, detail = run_state()
  if kind == 'done' and is_open() then
    close_window(read_window(), detail, owner)
  end
  return kind, owner, detail
end

-- End other windows as skipped. close_window ends only this script's own.
local function skip_others(others, owner)
  if not others[1] then
    return
  end
  check_count('c:skipped')
  check_count('x:skipped')
  for _, each in ipairs(others) do
    local start, window = each.start, each.window
    make_room()
    redis.call('ZREM', OPEN, member_of(start))
    redis.call('HDEL', ENTRY, 'w:' .. start)
    redis.call('HINCRBY', ENTRY, counts(start) and 'c:skipped' or 'x:skipped', 1)
    remember(start, 'skipped', window.claimed, 0, NOW - window.claimed, window.attempts, window.beat, owner)
    on_close(start, window, 'skipped')
  end
end
