-- The rules of an entry that end windows.

-- include: entry, window

-- When a rule ends an open window that nobody runs, server ms: it expires, or it never began and is missed, so that a
-- weekend's queue doesn't all run on Monday. The second value is the outcome, once that time has passed.
local function ends_at(window)
  local expires = window.expires ~= '0' and tonumber(window.expires) or math.huge
  local missed = is_new(window) and entry.grace and STARTS_AT + entry.grace or math.huge
  return math.min(expires, missed), NOW > expires and 'expired' or 'missed'
end

-- The outcome of an open window that nobody runs, if a rule ends it; else nil.
local function ended_by_rule(window)
  if window.attempts >= entry.max_attempts then
    return 'abandoned'
  end
  if window.attempts >= 1 and entry.recover == '0' and window.state == 'plain' then
    return 'dropped'
  end
  local at, outcome = ends_at(window)
  return NOW > at and outcome or nil
end
