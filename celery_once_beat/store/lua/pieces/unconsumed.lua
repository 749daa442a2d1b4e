-- Windows that were published and never began. If nobody consumes their queue, each further copy only lengthens it.
-- So one window of the entry is tried at a time; the others are put off, without a message. Each one that begins lets
-- more be tried, up to MOST_TRIED.
--
-- The field `trying`: the window that is tried, how many more may be, and the latest deadline of those put off.

-- include: entry, window

local MOST_TRIED = 100

local function read_trying()
  local text = entry.trying
  if not text then
    return nil
  end
  local start, more, last = string.match(text, '^(%S+) (%d+) (%d+)$')
  if not start or not is_instant(start) or not whole(more) or not whole(last) then
    bad_field('trying', text, 'an instant and two numbers')
  end
  return start, tonumber(more), tonumber(last)
end

local function write_trying(start, more, last)
  redis.call('HSET', ENTRY, 'trying', string.format('%s %.0f %.0f', start, more, last))
end

-- When a window that is put off becomes overdue: after an eighth of its age, up to ten minutes.
local function overdue_again(window)
  return NOW + math.floor(math.min(math.max((NOW - window.claimed) / 8, MARGIN), 600000))
end

-- First begin of `window`: its queue is consumed, so more windows may be tried, and the one being tried is overdue
-- sooner. Reads only; returns the function that writes. Call it only if entry.trying is set.
local function see_consumed(window)
  local start, more, last = read_trying()
  -- pcall: an account that can't be read is its own window's trouble.
  local readable, first, deadline = pcall(another, start)
  return function()
    write_trying(start, math.min(more + (window.publishes > 1 and 2 or 1), MOST_TRIED), last)
    if readable and first and first.fence == 0 and deadline > overdue_again(first) then
      redis.call('ZADD', OPEN, 'XX', overdue_again(first), member_of(start))
    end
  end
end
