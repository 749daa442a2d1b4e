-- What is to be said once of a window. A notice is a member of OPEN, '<entry>@<start>!<kind>', and its score says when it is
-- due, server ms, and FIRST_ALERT more: many that are due at once must hide no overdue window from a look. A look asks for
-- them apart.
--
--   late     the window isn't done a deadline after its start     ended    it has an outcome that isn't done
--   paused   its failure has paused the entry
--
-- tell takes a notice, and told removes it. Beside it the entry's hash has, until it is told:
--
--   e:<start>          how the window ended: '<outcome> <server ms> <attempts> <what the failure said>'
--   n:<start>!<kind>   '<beat> <turn> <turn>': the beat that says it, its turn, and the turn of the first beat that took it. Any
--                      beat that took it since then may remove it, however long it took to say it. A beat that slept through
--                      that doesn't remove a later notice
--
-- At most MOST_ENDS are kept to be told: where nobody tells anything, further ends aren't.

-- include: entry, window

local MOST_ENDS = 2000
-- So many windows that failed in a row are named.
local MOST_NAMED = 10

-- What the entry wants to be said: the deadline (ms after the start; 0: none), how many failures in a row pause it (0: never),
-- and whether ends that aren't done are told.
local function read_tells()
  local deadline, failures, ends = string.match(entry.tells, '^(%d+) (%d+) ([01])$')
  if not deadline or not whole(deadline) or not whole(failures) then
    bad_field('tells', entry.tells, 'two numbers and 0 or 1')
  end
  return deadline + 0, failures + 0, ends == '1'
end

-- The failures in a row: how many, and the starts of the last of them.
local function read_streak()
  local text = entry.streak or '0'
  local number, starts = string.match(text, '^(%d+)([%dTZ:. -]*)$')
  return number and whole(number) or bad_field('streak', text, 'a number and instants'), starts
end

-- Look at what the end of a window will need: if the end couldn't be recorded, the window would restart for ever.
local function check_tells()
  local _, failures = read_tells()
  if failures > 0 then
    read_streak()
  end
end

local function add_notice(kind, start, at)
  redis.call('ZADD', OPEN, int(FIRST_ALERT + at), member_of(start) .. '!' .. kind)
  keep(OPEN)
end

local function write_ended(start, outcome, attempts, failure)
  redis.call('HSET', ENTRY, 'e:' .. start, string.format('%s %.0f %d %s', outcome, NOW, attempts, failure or ''))
end

-- How many more ends may be kept. By HKEYS, which the rights of docs/redis.md hold, as everything that a window's end needs.
local function room_for_ends()
  local room = MOST_ENDS
  for _, field in ipairs(redis.call('HKEYS', ENTRY)) do
    if string.sub(field, 1, 2) == 'e:' then
      room = room - 1
    end
  end
  return math.max(room, 0)
end

-- Windows that were passed over: all are missed.
local function tell_missed(starts)
  local _, _, ends = read_tells()
  local room = ends and room_for_ends() or 0
  for place = math.max(#starts - room, 0) + 1, #starts do
    write_ended(starts[place], 'missed', 0)
    add_notice('ended', starts[place], NOW)
  end
end

-- A window ended and isn't done: keep that for whoever is to be told.
local function note_end(start, outcome, attempts, failure)
  local deadline, _, ends = read_tells()
  ends = ends and room_for_ends() > 0
  if ends or deadline > 0 and redis.call('ZSCORE', OPEN, member_of(start) .. '!late') then
    write_ended(start, outcome, attempts, failure)
  end
  if ends then
    redis.call('HDEL', ENTRY, 'n:' .. start .. '!ended') -- who says an earlier one hasn't said this one
    add_notice('ended', start, NOW)
  end
end

-- What the end of a window makes to be said. Looks, and returns the function that writes.
local function see_end(window, outcome)
  local deadline, failures = read_tells()
  local late = MEMBER .. '!late'
  local counts = failures > 0 and window.backfill == 0 and not window.given_up and entry.paused ~= '1'
    and (outcome == 'done' or FAILED_AS[outcome])
  local number, starts
  if counts then
    number, starts = read_streak()
  end
  return function()
    if outcome == 'done' then
      redis.call('ZREM', OPEN, late)
      if NOW >= STARTS_AT + deadline then -- a beat may be about to say it, or have died so
        redis.call('HDEL', ENTRY, 'n:' .. START .. '!late')
      end
      if window.backfill == 1 and not redis.call('ZSCORE', OPEN, MEMBER .. '!ended') then
        redis.call('HDEL', ENTRY, 'e:' .. START)
      end
      if counts and number > 0 then
        redis.call('HDEL', ENTRY, 'streak')
      end
      return
    end
    note_end(START, outcome, window.attempts, window.failure)
    if not counts then
      return
    end
    number, starts = number + 1, starts .. ' ' .. START
    starts = string.sub(starts, -MOST_NAMED * (#START + 1))
    if number < failures then
      redis.call('HSET', ENTRY, 'streak', int(number) .. starts)
      return
    end
    redis.call('HDEL', ENTRY, 'streak')
    write_paused(ENTRY, true, string.format('{"by": "pause_after_failures", "note": "%.0f windows in a row failed:%s%s"}',
      number, number > MOST_NAMED and ' ...' or '', string.gsub(starts, ' (%S-)%.?0*Z', ' %1Z,'):sub(1, -2)))
    add_notice('paused', START, NOW)
  end
end
