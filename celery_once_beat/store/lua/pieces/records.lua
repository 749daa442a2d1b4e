-- Counters of outcomes, and the history: records of windows that ended.

-- include: entry

-- Trim for one more record, before anything is counted: on a foreign key it raises, and a repetition would count again.
local function make_room()
  if HISTORY_SIZE > 0 then
    redis.call('LTRIM', HISTORY, HISTORY_SIZE == 1 and 1 or 0, math.max(HISTORY_SIZE - 2, 0)) -- 1, 0: all of it goes
  end
end

-- The conservation law counts windows of the present definition (c:). All others are counted apart (x:).
local function check_count(name)
  return entry[name] or number_field(name, redis.call('HGET', ENTRY, name), 0)
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
