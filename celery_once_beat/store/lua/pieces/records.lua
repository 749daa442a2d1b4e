-- Counters of outcomes, and the history: records of windows that ended.

-- include: entry

-- The conservation law counts windows of the present definition (c:). All others are counted apart (x:).
local function check_count(name)
  return entry[name] or number_field(name, redis.call('HGET', ENTRY, name), 0)
end

-- A record, separated by blanks: start without trailing zeros; outcome; claimed (server ms); ms from then to its last
-- begin (0: none, or at once); ms to its end; attempts, or the number of missed windows; the beat's host and process
-- (host:order for one that was ordered); who ran it last, else who ended it (@host for celery@host). A fence is the time of
-- its begin; see protocol.py. Display only: pcall, since a foreign key in its place must block no window.
local function remember(window, outcome, owner)
  if HISTORY_SIZE == 0 then
    return
  end
  local by = window.backfill == 1 and string.match(window.beat, '^[^:]*') .. ':order' or window.beat
  local ran_by = window.fence > 0 and window.owner or owner
  local text = string.format('%s %s %s %.0f %.0f %d %s %s', string.gsub(window.start, '%.?0*Z$', ''), outcome,
    window.claimed, math.max(window.fence - window.claimed, 0), math.max(NOW - window.claimed, 0), window.attempts,
    string.match(by, '^[^:]*:?[^:]*'), (string.gsub(string.match(ran_by, '^[^:/]*'), '^celery@', '@')))
  if type(redis.pcall('LPUSH', HISTORY, text)) == 'number' then
    redis.call('LTRIM', HISTORY, 0, HISTORY_SIZE - 1)
    keep(HISTORY)
  end
end
