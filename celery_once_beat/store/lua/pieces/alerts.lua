-- Alerts of windows. ALERTS is the shard's stream: the script that decides something adds an event. A beat takes
-- events (alerts), sends each, and confirms it (alerted). An event that isn't confirmed in time is taken by another
-- beat. All beats share one consumer, since a consumer per beat would remain in the group.
--
-- An event has four fields, in this order:
--
--   window   '<entry>@<start>'
--   kind     late: it isn't done a deadline after its start   ended: it has an outcome that isn't done
--            paused: its failure has paused the entry
--   at       when that was, server ms
--   what     of an end '<outcome> <server ms> <what the failure said>'; of a late one that is open, when it becomes
--            overdue, server ms; of a pause its note
--
-- LATE: windows that are not yet done or late, scored by the time at which they become late, server ms. ENDS: how
-- those in LATE ended that aren't done.
--
-- pcall: a foreign key in their place must not block a window.
--
-- A stream has about so many events: without a reader the oldest are dropped.

-- include: entry, window

local MOST_ALERTS = 10000
-- Milliseconds after its last event.
local ALERTS_TTL = 30 * DAY
-- How many of a streak are named.
local MOST_NAMED = 10

-- The alerts that the entry asks for: the deadline (ms after the start; 0: none), how many failures in a row pause it
-- (0: never), and whether ends are alerted that aren't done.
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

-- Check before writing: if the end couldn't be recorded, the window would restart for ever.
local function check_tells()
  if entry.tells and select(2, read_tells()) > 0 then
    read_streak()
  end
end

local function add_alert(kind, member, what)
  redis.pcall('XADD', ALERTS, 'MAXLEN', '~', MOST_ALERTS, '*', 'window', member, 'kind', kind, 'at', int(NOW), 'what', what)
  redis.call('PEXPIRE', ALERTS, ALERTS_TTL)
end

-- A window ended and isn't done.
local function note_end(start, outcome, failure)
  if not entry.tells then
    return
  end
  if (failure or '') == '' then
    failure = redis.pcall('HGET', FAILURES, start)
  end
  local what = string.format('%s %.0f %s', outcome, NOW, type(failure) == 'string' and failure or '')
  local member = member_of(start)
  if select(3, read_tells()) then
    add_alert('ended', member, what)
  end
  if type(redis.pcall('ZSCORE', LATE, member)) == 'string' then
    redis.pcall('HSET', ENDS, member, what)
    keep(ENDS)
  end
end

-- This window failed, or is done: that counts for the failures in a row.
local function count_failure(outcome, most)
  local number, starts = read_streak()
  if outcome == 'done' then
    if number > 0 then
      redis.call('HDEL', ENTRY, 'streak')
    end
    return
  end
  number, starts = number + 1, starts .. ' ' .. START
  starts = string.sub(starts, -MOST_NAMED * (#START + 1))
  if number < most then
    redis.call('HSET', ENTRY, 'streak', int(number) .. starts)
    return
  end
  redis.call('HDEL', ENTRY, 'streak')
  local note = string.format('%.0f windows in a row failed:%s%s', number, number > MOST_NAMED and ' ...' or '',
    string.gsub(starts, ' (%S-)%.?0*Z', ' %1Z,'):sub(1, -2))
  write_paused(ENTRY, true, '{"by": "pause_after_failures", "note": "' .. note .. '"}')
  add_alert('paused', MEMBER, note)
end

-- The window of this verb ended; see check_tells.
local function tell_end(window, outcome)
  if not entry.tells then
    return
  end
  if outcome == 'done' then
    redis.pcall('ZREM', LATE, MEMBER)
    redis.pcall('HDEL', ENDS, MEMBER)
  else
    note_end(START, outcome, window.failure)
  end
  local _, failures = read_tells()
  if failures > 0 and window.backfill == 0 and not window.given_up and entry.paused ~= '1'
    and (outcome == 'done' or FAILED_AS[outcome]) then
    count_failure(outcome, failures)
  end
end
