-- Windows that were published and never began. Perhaps nobody consumes their queue, and then every copy makes it longer. So
-- one of them at a time is published again; the others are put off, without a message. Each that begins lets more be tried:
-- twice as many each time, up to MOST_TRIED.
--
-- The field `trying` says which one is tried, how many more may be, and when the last of those put off
-- becomes overdue.

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

-- A copy of `window` has reached a worker, and it is its first begin. So somebody consumes its queue: more may be tried,
-- and the one that is tried needn't wait for its next step. Looks, and returns the function that writes; only where
-- entry.trying says something.
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
