-- Entries whose windows don't overlap. What has begun before goes first.

-- How long (ms) a window that is to run again keeps newer ones of its entry from beginning. By then a beat has taken it or
-- asked for it again; one that nobody asks for doesn't block the others for ever.
local PATIENCE = 60000

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
