-- How late windows began, how long they had waited in their queue, and how long they ran: the field `times`.
--
-- It holds three sums, ms, then counters: '<late> <queued> <ran> l50:<number> l250:<number> q50:<number> r5000:<number>'.
-- l250 counts the windows that began up to 250 ms late and later than the bound before, linf those later than the last
-- bound; so with q for the queue and r for runs. A counter that isn't there is 0. Any bounds can be read, so another
-- version may have others.
--
-- They are for people: a text that can't be read stays as it is, and stops no window.

-- include: entry
-- fields: times

local LONGEST_TIMES = 1000

-- The counters with one more; nil where they can't be read.
local function count_time(counters, letter, ms)
  local bound = 'inf'
  for _, each in ipairs(BOUNDS) do
    if ms <= each then
      bound = each
      break
    end
  end
  local name = ' ' .. letter .. bound .. ':'
  local _, colon = find(counters, name, 1, true)
  if not colon then
    return counters .. name .. '1'
  end
  local number = string.match(counters, '^%d+', colon + 1)
  if not number or #number > 14 then
    return nil
  end
  return string.sub(counters, 1, colon) .. int(number + 1) .. string.sub(counters, colon + #number + 1)
end

-- An order has no lateness, and a window that began more than once waited in its queue more than once. `ran` (ms) is nil
-- where nobody knows: its process died.
local function times_on_close(_, window, _, fields, ran)
  local late, queued, all_ran, counters = string.match(entry.times or '0 0 0', '^(%d+) (%d+) (%d+)(.*)$')
  if not fields or window.fence == 0 or not late or #counters > LONGEST_TIMES then
    return
  end
  if window.backfill == 0 then
    local ms = math.max(window.fence - STARTS_AT, 0)
    late, counters = late + ms, count_time(counters, 'l', ms)
  end
  if counters and window.attempts == 1 and window.retry == 0 then
    local ms = math.max(window.fence - window.claimed, 0)
    queued, counters = queued + ms, count_time(counters, 'q', ms)
  end
  if counters and ran then
    ran = math.max(ran, 0)
    all_ran, counters = all_ran + ran, count_time(counters, 'r', ran)
  end
  if counters and math.max(late, queued, all_ran) < TOO_LARGE then
    fields[#fields + 1] = 'times'
    fields[#fields + 1] = string.format('%.0f %.0f %.0f%s', late, queued, all_ran, counters)
  end
end
