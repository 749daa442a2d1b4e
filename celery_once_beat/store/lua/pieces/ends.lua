-- The end of a window: counters, history.

-- include: alerts, entry, line, run, times, window

-- Trim for one more record. Fails on a foreign key, so it must be the script's first write; a script that stops
-- halfway would count twice.
local function make_room()
  if HISTORY_SIZE == 1 then
    redis.call('LTRIM', HISTORY, 1, 0)
  elseif HISTORY_SIZE > 1 then
    redis.call('LTRIM', HISTORY, 0, HISTORY_SIZE - 2)
  end
end

-- The conservation law counts windows of the present definition (c:). All others are counted apart (x:).
local function look_at_count(name)
  return number_field(name, entry[name] or redis.call('HGET', ENTRY, name), 0)
end

-- A record, separated by blanks: start without trailing zeros; outcome; claimed (server ms); ms from then to its last
-- begin (0: none, or at once); ms to its end; attempts, or the number of missed windows; the beat's host and process
-- (host:order for one that was ordered); the last worker (@host for celery@host). Call make_room first.
local function remember(start, outcome, claimed, begun, closed, number, beat, owner)
  if HISTORY_SIZE > 0 then
    local text = string.format('%s %s %s %.0f %.0f %d %s %s', string.gsub(start, '%.?0*Z$', ''), outcome, claimed,
      math.max(begun, 0), math.max(closed, 0), number, string.match(beat, '^[^:]*:?[^:]*'),
      (string.gsub(string.match(owner, '^[^:/]*'), '^celery@', '@')))
    redis.call('LPUSH', HISTORY, text)
    keep(HISTORY)
  end
end

-- `ran`: for how long, ms; nil where its execution didn't say that it ended. The next in line is called.
local function close_window(window, outcome, owner, ran)
  check_instants()
  local alone = not passed()
  local apart = window.backfill == 1 or alone or START <= (entry.since or entry.born)
  local name = (apart and 'x:' or 'c:') .. outcome
  local counted = int(look_at_count(name) + 1)
  check_tells()
  make_room()
  redis.call('ZREM', OPEN, MEMBER)
  redis.call('HDEL', ENTRY, 'w:' .. START)
  mark_done(owner, outcome, alone)
  if outcome == 'done' and START > (entry.last_done or '') then
    redis.call('HSET', ENTRY, name, counted, 'last_done', START, times_with(window, ran))
  else
    redis.call('HSET', ENTRY, name, counted, times_with(window, ran))
  end
  keep_entry()
  local by = window.backfill == 1 and string.match(window.beat, '^[^:]*') .. ':order' or window.beat
  -- Who ran it last, whoever ends it.
  local ran_by = window.fence > 0 and window.owner or owner
  remember(START, outcome, window.claimed, window.fence - window.claimed, NOW - window.claimed, window.attempts, by,
    ran_by)
  tell_end(window, outcome)
  call_next()
end

-- If the run key says done but the window is open, close it now. Returns the run state.
local function settle()
  local kind, owner, number = run_state()
  if kind == 'done' and is_open() then
    close_window(read_window(), number, owner)
  end
  return kind, owner, number
end

-- End other windows as skipped. close_window ends only this script's own.
local function pass_over(others, owner)
  if not others[1] then
    return
  end
  look_at_count('c:skipped')
  look_at_count('x:skipped')
  check_tells()
  for _, each in ipairs(others) do
    local start, window = each.start, each.window
    make_room()
    redis.call('ZREM', OPEN, member_of(start))
    redis.call('HDEL', ENTRY, 'w:' .. start)
    local since = entry.since or entry.born
    local counts = entry.cursor and since and since < start and start <= entry.cursor
    redis.call('HINCRBY', ENTRY, counts and 'c:skipped' or 'x:skipped', 1)
    remember(start, 'skipped', window.claimed, 0, NOW - window.claimed, window.attempts, window.beat, owner)
    note_end(start, 'skipped')
  end
end
