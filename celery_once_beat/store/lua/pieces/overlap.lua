-- Entries whose windows don't overlap. What has begun before goes first.
--
-- With buffers a window whose turn it isn't waits: `released` of its account says so until it begins. It is open, and its
-- deadline is far, so that no beat takes it. Its message lies beside it (park). Whatever ends the window that has the turn
-- calls the next one: in the same step it writes that one's start into `waiting`, and moves its deadline near. Whoever asked
-- for that end publishes the message; if it dies before, a beat does. A window that waits for a place has its turn; see
-- limit.lua.

-- How long (ms) a window that is to run again keeps newer ones of its entry from beginning. By then a beat has taken it or
-- asked for it again; one that nobody asks for doesn't block the others for ever.
local PATIENCE = 60000
-- The field `buffered` where windows wait for places alone, of which an end calls none: however many wait, it looks at none.
local FOR_PLACES = '2'

local function last_that_began()
  return instant_field('running', redis.call('HGET', ENTRY, 'running') or nil)
end

local function last_that_waits()
  local text = redis.call('HGET', ENTRY, 'waiting')
  if not text then
    return nil
  end
  local start, at = string.match(text, '^(%S+) (%d+)$')
  if not start or not is_instant(start) or not whole(at) then
    bad_field('waiting', text, 'an instant and a time')
  end
  local window = math.abs(NOW - tonumber(at)) < PATIENCE and redis.call('HGET', ENTRY, 'w:' .. start)
  return window and start or nil
end

-- Whether another window of the entry is being executed, or waits for its retry. That is the last one that began, and its
-- deadline says whether it is dead.
local function another_runs()
  local window, deadline = another(last_that_began())
  return window and window.fence > 0 and window.released <= TO_RETRY and deadline > NOW
end

-- Whether another window is to run before any that hasn't begun: it died, was ordered, or waits for one that runs.
local function another_goes_first()
  local window, deadline = another(last_that_began())
  if window and window.fence > 0 and window.released <= TO_RETRY and deadline + PATIENCE > NOW then
    return not limit_reached(window)
  end
  window = another(last_that_waits())
  return window and not limit_reached(window)
end

-- This window waits for another of its entry, and newer ones wait for it.
local function wait_for_turn()
  local first = last_that_waits()
  if not first or START <= first then
    redis.call('HSET', ENTRY, 'waiting', START .. ' ' .. int(NOW))
  end
end

-- What waits is looked at again after this time (ms), also if nobody calls it: the store lost a key.
local LONGEST_WAIT = 600000

-- When a window that waits becomes overdue: what expires meanwhile, or is too late, is to end then.
local function end_of_wait(window)
  local at = NOW + LONGEST_WAIT
  if window.expires ~= '0' then
    at = math.min(at, tonumber(window.expires) + 1)
  end
  if window.fence == 0 and window.backfill == 0 and entry.grace and entry.grace ~= '-1' then
    at = math.min(at, STARTS_AT + number_field('grace', entry.grace) + 1)
  end
  return math.max(at, NOW + MARGIN)
end

-- Whether `one` goes before `other`: what has its turn already, then what has begun before or was ordered, then the older.
local function goes_before(one, other)
  local function rank(window)
    return window.released == WAITS_FOR_PLACE and 0 or (window.fence > 0 or window.backfill == 1) and 1 or 2
  end
  local first, second = rank(one.window), rank(other.window)
  return first < second or first == second and one.start < other.start
end

-- The windows of the entry that wait, all but START; the next one in line comes first.
local function all_that_wait()
  local found, fields = {}, redis.call('HGETALL', ENTRY)
  for place = 1, #fields, 2 do
    local start = string.match(fields[place], '^w:(.*)$')
    if start and start ~= START and is_instant(start) then
      -- pcall: an account that can't be read is its own window's trouble.
      local readable, window = pcall(read_account, fields[place + 1], start)
      if readable and window.released >= WAITS_FOR_TURN and redis.call('ZSCORE', OPEN, member_of(start)) then
        found[#found + 1] = {start = start, window = window}
      end
    end
  end
  table.sort(found, goes_before)
  return found
end

-- The start of another window that has the turn: it runs, waits for its retry, or died and a beat may recover it still.
local function turn_holder()
  local start = last_that_began()
  local window, deadline = another(start)
  if window and window.fence > 0 and window.released <= TO_RETRY
    and (deadline > NOW or deadline + PATIENCE > NOW and not limit_reached(window)) then
    return start
  end
  return nil
end

-- It is its turn now: others wait for it, and it is overdue soon, unless its message is published.
local function call_window(start)
  redis.call('HSET', ENTRY, 'waiting', start .. ' ' .. int(NOW))
  redis.call('ZADD', OPEN, 'XX', NOW + MARGIN, member_of(start))
  return start
end

-- Returns the window for which this one waits, and whether that one is still to be called; nil: this one has its turn.
local function waits_for(window)
  local start = turn_holder()
  if start then
    return start
  end
  start = last_that_waits()
  if start == START then
    return nil
  end
  local other = another(start)
  if other and not limit_reached(other) then
    return start
  end
  local first = entry.buffered and all_that_wait()[1]
  if first and goes_before(first, {start = START, window = window}) then
    return first.start, first.window.released == WAITS_FOR_TURN
  end
  return nil
end

-- The window that was called and hasn't begun: what an end that is sent again answers. Another end may have called it since the
-- first answer. Then its message is published twice, and workers refuse the second copy; who was told is kept nowhere.
local function called_window()
  local start = last_that_waits()
  local window = another(start)
  return window and window.released == WAITS_FOR_TURN and start or nil
end

-- If nobody else has the turn, it is free: call the next window that waits. Returns its start, or nil.
local function give_turn()
  if not entry.buffered or entry.buffered == FOR_PLACES or turn_holder() then
    return nil
  end
  local window = another(last_that_waits())
  if window and not limit_reached(window) then
    return nil -- it was called, or a beat is about to take it
  end
  local first = all_that_wait()[1]
  if not first then
    redis.call('HDEL', ENTRY, 'buffered')
    return nil
  end
  return first.window.released == WAITS_FOR_TURN and call_window(first.start) or nil
end

-- Whether another window has its turn and waits for a place.
local function another_waits_for_place()
  local first = entry.buffered and all_that_wait()[1]
  return first and first.window.released == WAITS_FOR_PLACE
end

-- The message of a window that waited. Its key isn't among the script's, but in their slot; where a script may not have it
-- (a proxy, a server that wants each key declared), it expires.
local function forget_message(start, window)
  if window.released >= WAITS_FOR_TURN then
    local shard, name = string.match(ENTRY, '^(.-{%d+}:)entry:(.*)$')
    if shard then
      redis.pcall('DEL', shard .. 'message:' .. name .. ':' .. start)
    end
  end
end

-- Which of the new windows that wait are passed over, now that this one would wait too: all but the newest of them. What was
-- called, or is called now (`to_call`), isn't among them. Returns them, and whether this one is.
local function passed_over(to_call)
  local turn, kept, others = to_call or called_window(), START, {}
  for _, each in ipairs(entry.buffered and all_that_wait() or {}) do
    if each.window.released == WAITS_FOR_TURN and each.window.fence == 0 and each.window.backfill == 0
      and each.start ~= turn then
      others[#others + 1] = each
      if each.start > kept then
        kept = each.start
      end
    end
  end
  local over = {}
  for _, each in ipairs(others) do
    if each.start ~= kept then
      over[#over + 1] = each
    end
  end
  return over, kept ~= START
end

-- The end of other windows, which wait and are passed over. As close_window, which knows this verb's window alone.
local function pass_over(others, owner)
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
    forget_message(start, window)
  end
end

-- This window waits from now on: for a place of `limit`, else for its turn. What is called is another. `alone`: windows of its
-- entry don't wait for each other.
local function start_waiting(window, limit, alone)
  touch_entry()
  if entry.trying and window.fence == 0 then
    see_consumed(window)()
  end
  if last_that_waits() == START then
    redis.call('HDEL', ENTRY, 'waiting')
  end
  window.turn, window.taken = window.turn + 1, 0
  window.released = limit and WAITS_FOR_PLACE or WAITS_FOR_TURN
  local named = limit and {'limit', limit} or {}
  local what = alone and (entry.buffered or FOR_PLACES) or '1'
  write_window(window, end_of_wait(window), 'buffered', what, unpack(named))
end
