-- A limit: how many windows may run at once, of all entries that name it. Its keys are in a slot of their own:
--
--   PLACES    '<owner> <window>' → the end of its lease, server ms. A window is <entry>@<start>
--   WAITING   <window> → when it came, server microseconds: no two came at once
--   CALLED    <window> that waits → until when a place is kept for it, server ms
--   CALLS     <window> of CALLED → '<call> <server ms>': the call that was told so, and when; 0: a beat was told since
--             fewest → '<number> <server ms>': the places that there are by a worker that found none, and when it asked
--
-- A place is a lease: it is taken before begin, renewed with the window's lease, and given back after the end. Whoever gives
-- one back, or finds one whose lease is over, calls the one that has waited longest. Who was called and comes late takes any
-- place that is free, and isn't called again for a while: it keeps no other from running.
--
-- A call that is sent again is told the same. Whoever was told may have died: if the window doesn't come soon, a beat is told
-- too, once.

-- How long (ms) a place is kept for a window that was called, and after how long it is called again. While others are late
-- none is kept: perhaps nobody consumes their queue.
local KEPT_FOR, CALLED_AGAIN = 5000, 20000
-- How long (ms) after it was called a window should have come; then a beat looks whether its message is out.
local COMES_WITHIN = 2000
-- How long (ms) a beat goes by the number of a worker that found no place. By a higher one of its own it would call the same
-- windows at each look, and that worker would let them wait again.
local FEWEST_FOR = 60000

-- First what needs no memory. The dead give back their places.
local function forget_dead()
  redis.call('ZREMRANGEBYSCORE', PLACES, '-inf', NOW)
end

-- Its place and that one's owner; nil where it has none.
local function place_of(window)
  for _, member in ipairs(redis.call('ZRANGE', PLACES, 0, -1)) do
    local owner, whose = string.match(member, '^(%S+) (.*)$')
    if whose == window then
      return member, owner
    end
  end
  return nil
end

local function free_places()
  local most = MOST
  if WINDOW == '' then -- a beat asks
    local number, at = string.match(redis.call('HGET', CALLS, 'fewest') or '', '^(%d+) (%d+)$')
    most = number and at + FEWEST_FOR > NOW and math.min(most, number) or most
  end
  return most - redis.call('ZCARD', PLACES)
end

-- How many places are kept for those that were called.
local function kept_places()
  return redis.call('ZCOUNT', CALLED, '(' .. int(NOW), '+inf')
end

-- Each window that was called and hasn't come: its name, the call that was told so, and when.
local function each_called()
  local fields, place = redis.call('HGETALL', CALLS), -1
  return function()
    repeat
      place = place + 2
    until fields[place] ~= 'fewest'
    local call, at = string.match(fields[place + 1] or '', '^(%S+) (%d+)$')
    return fields[place], call, tonumber(at or 0)
  end
end

-- Adds to `reply` what this call was told before: its reply was lost.
local function tell_again(reply)
  for window, call in each_called() do
    if call == CALL then
      reply[#reply + 1] = window
    end
  end
end

-- Adds to `reply` the windows that should have come by now.
local function tell_a_beat(reply)
  for window, _, at in each_called() do
    if at > 0 and at + COMES_WITHIN < NOW then
      redis.call('HSET', CALLS, window, CALL .. ' 0')
      reply[#reply + 1] = window
    end
  end
end

-- The window isn't among those that were called any more.
local function not_called()
  if redis.call('ZREM', CALLED, WINDOW) == 1 then
    redis.call('HDEL', CALLS, WINDOW)
  end
end

-- Adds to `reply` the windows that are called now: those that have waited longest, as far as there are places. If `last` waits,
-- only windows that have waited longer.
local function call_waiting(reply, last)
  local free = free_places() - kept_places()
  local kept_until = redis.call('ZCOUNT', CALLED, '-inf', int(NOW)) > 0 and NOW or NOW + KEPT_FOR
  local from = 0
  while free > 0 do
    local some = redis.call('ZRANGE', WAITING, from, from + 99)
    for _, window in ipairs(some) do
      if window == last or free == 0 then
        return reply
      end
      local at = redis.call('ZSCORE', CALLED, window)
      if not at or tonumber(at) + CALLED_AGAIN < NOW then
        redis.call('ZADD', CALLED, kept_until, window)
        redis.call('HSET', CALLS, window, CALL .. ' ' .. int(NOW))
        reply[#reply + 1], free = window, free - 1
      end
    end
    if #some < 100 then
      break
    end
    from = from + 100
  end
  return reply
end

local function keep_limit()
  for _, key in ipairs({PLACES, WAITING, CALLED, CALLS}) do
    redis.call('PEXPIRE', key, DAY)
  end
end
