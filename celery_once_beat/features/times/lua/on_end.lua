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
  local before, number, behind = string.match(counters, '^(.*' .. name .. ')(%d*)(.*)$')
  if not before then
    return counters .. name .. '1'
  end
  return whole(number) and #number < 15 and before .. int(number + 1) .. behind
end

-- An order has no lateness, and a window that began more than once waited in its queue more than once. `ran` (ms) is nil
-- where nobody knows: its process died.
local function times_on_end(window, fields, ran)
  local late, queued, all_ran, counters = string.match(entry.times or '0 0 0', '^(%d+) (%d+) (%d+)(.*)$')
  if window.fence == 0 or not late or #counters > LONGEST_TIMES then
    return
  end
  local once = window.attempts == 1 and window.retry == 0
  local took = {window.backfill == 0 and window.fence - STARTS_AT, once and window.fence - window.claimed, ran}
  local sums = {late, queued, all_ran}
  for place, letter in ipairs({'l', 'q', 'r'}) do
    local ms = took[place] and math.max(took[place], 0)
    if ms then
      sums[place], counters = sums[place] + ms, counters and count_time(counters, letter, ms)
    end
  end
  if counters and math.max(unpack(sums)) < TOO_LARGE then
    fields[#fields + 1], fields[#fields + 2] = 'times', string.format('%.0f %.0f %.0f', unpack(sums)) .. counters
  end
end
