-- The line of an entry whose windows run one by one: one window has the turn, the others wait.
--
-- A window that waits has the state waits_turn, a far deadline and no message. When the turn is free, call_next makes
-- the first in line overdue, and a beat's next look publishes it. It stays in line until it begins.
--
-- LINES says for which entries windows wait, and until when beats look often for that.

-- include: end_rules, entry, turn, waiting
-- keys: lines
-- fields: overlap, waits

-- The start of another window that has the turn: it runs, waits for its retry, or died and a beat may recover it still.
local function turn_holder()
  local window = another_taken_up()
  local ahead = window and window.deadline - NOW
  if ahead and (ahead > 0 or ahead + PATIENCE > 0 and not ended_by_rule(window)) then
    return window.start
  end
end

-- Whether `one` goes before `other`: what waits for a slot has its turn already, then what has begun before or was ordered,
-- then the older.
local function goes_before(one, other)
  local function rank(window)
    return window.state == 'waits_slot' and 0 or is_new(window) and 2 or 1
  end
  local first, second = rank(one), rank(other)
  return first < second or first == second and one.start < other.start
end

-- The windows of the entry in line, all but START; the first comes first.
local function read_line()
  local found, fields = {}, redis.call('HGETALL', ENTRY)
  for place = 1, #fields, 2 do
    local start = string.match(fields[place], '^w:(.*)$')
    if start and start ~= START and is_instant(start) then
      -- pcall: an account that can't be read is its own window's trouble.
      local readable, window = pcall(find_window, start, fields[place + 1])
      if readable and window and in_line(window) then
        found[#found + 1] = window
      end
    end
  end
  table.sort(found, goes_before)
  return found
end

local function no_line()
  redis.call('HDEL', ENTRY, 'waits')
  redis.call('ZREM', LINES, ENTRY)
end

-- The start of the window that goes before this one; nil: it is this one's turn.
local function waits_for(window)
  local first = entry.waits and read_line()[1]
  return turn_holder() or first and goes_before(first, window) and first.start or nil
end

-- If nobody has the turn, the first in line is overdue now; unless its message is out, or it waits for a slot.
local function call_next()
  if not entry.waits or turn_holder() then
    return
  end
  local first = read_line()[1]
  if not first then
    no_line()
  elseif first.state == 'waits_turn' and first.message == 'none' then
    redis.call('ZADD', OPEN, 'XX', NOW, member_of(first.start))
  end
end
