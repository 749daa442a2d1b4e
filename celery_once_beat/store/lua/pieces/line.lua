-- The line of an entry whose windows don't overlap: one window has the turn, the others wait.
--
-- A window that waits has the state waits_turn, a far deadline and no message. When the turn is free, call_next makes
-- the first in line overdue, and a beat's next look publishes it. It stays in line until it begins.

-- include: end_rules, entry, window

-- How long (ms) a window that died keeps others of its entry from beginning. By then a beat has taken it.
local PATIENCE = 60000
-- A window that waits is overdue after this time (ms) even if nobody calls it: the store lost a key.
local LONGEST_WAIT = 600000

local function last_that_began()
  return instant_field('running', redis.call('HGET', ENTRY, 'running') or nil)
end

-- Whether an execution has the window, or its retry does: as long as its deadline lies ahead.
local function is_taken_up(window)
  return window.fence > 0 and (window.state == 'held' or window.state == 'retry')
end

-- Whether another window of the entry is being executed, or waits for its retry.
local function another_runs()
  local window, deadline = another(last_that_began())
  return window and is_taken_up(window) and deadline > NOW
end

-- The start of another window that has the turn: it runs, waits for its retry, or died and a beat may recover it still.
local function turn_holder()
  local start = last_that_began()
  local window, deadline = another(start)
  if window and is_taken_up(window)
    and (deadline > NOW or deadline + PATIENCE > NOW and not limit_reached(window)) then
    return start
  end
  return nil
end

local function in_line(window)
  return window.state == 'waits_turn' or window.state == 'waits_slot' or window.state == 'again_due'
end

-- Whether `one` goes before `other`: what waits for a slot has its turn already, then what has begun before or was ordered,
-- then the older.
local function goes_before(one, other)
  local function rank(window)
    return window.state == 'waits_slot' and 0 or is_new(window) and 2 or 1
  end
  local first, second = rank(one.window), rank(other.window)
  return first < second or first == second and one.start < other.start
end

-- The windows of the entry in line, all but START; the first comes first.
local function read_line()
  local found, fields = {}, redis.call('HGETALL', ENTRY)
  for place = 1, #fields, 2 do
    local start = string.match(fields[place], '^w:(.*)$')
    if start and start ~= START and is_instant(start) then
      -- pcall: an account that can't be read is its own window's trouble.
      local readable, window = pcall(read_account, fields[place + 1], start)
      if readable and in_line(window) and redis.call('ZSCORE', OPEN, member_of(start)) then
        found[#found + 1] = {start = start, window = window}
      end
    end
  end
  table.sort(found, goes_before)
  return found
end

-- LINES says for which entries windows wait, and until when beats look often for that.
local function no_line()
  redis.call('HDEL', ENTRY, 'waits')
  redis.call('ZREM', LINES, ENTRY)
end

-- The start of the window that goes before this one; nil: it is this one's turn.
local function waits_for(window)
  local holder = turn_holder()
  if holder then
    return holder
  end
  local first = entry.waits and read_line()[1]
  return first and goes_before(first, {start = START, window = window}) and first.start or nil
end

-- If nobody has the turn, the first in line is overdue now; unless its message is out, or it waits for a slot.
local function call_next()
  if not entry.waits or turn_holder() then
    return
  end
  local first = read_line()[1]
  if not first then
    no_line()
  elseif first.window.state == 'waits_turn' and first.window.taken == 0 then
    redis.call('ZADD', OPEN, 'XX', NOW, member_of(first.start))
  end
end

-- When a window that waits becomes overdue: what expires meanwhile, or is too late, is to end then.
local function end_of_wait(window)
  local at = NOW + LONGEST_WAIT
  if window.expires ~= '0' then
    at = math.min(at, tonumber(window.expires) + 1)
  end
  if is_new(window) and entry.grace and entry.grace ~= '-1' then
    at = math.min(at, STARTS_AT + number_field('grace', entry.grace) + 1)
  end
  return math.max(at, NOW + MARGIN)
end

-- This window waits from now on, without a message: a beat that confirms one late changes nothing. `...` are fields of the entry
-- hash and their values.
local function start_waiting(window, state, ...)
  window.turn, window.taken, window.publishes, window.state = window.turn + 1, 0, 0, state
  write_window(window, end_of_wait(window), ...)
  if state == 'waits_turn' then
    redis.call('ZADD', LINES, NOW + LONGEST_WAIT, ENTRY)
    redis.call('PEXPIRE', LINES, 2 * LONGEST_WAIT)
  end
end
