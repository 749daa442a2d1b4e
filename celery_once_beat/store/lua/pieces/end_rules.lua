-- The rules of an entry that end windows.

-- include: entry, window

-- The outcome of an open window that nobody runs, if a limit ends it; else nil.
local function limit_reached(window)
  if window.attempts >= most_attempts() then
    return 'abandoned'
  end
  if window.attempts >= 1 and entry.recover == '0' and window.state == 'held' then
    return 'dropped'
  end
  if window.expires ~= '0' and NOW > tonumber(window.expires) then
    return 'expired'
  end
  return nil
end

-- A window that never began is missed once the entry's grace has passed: a weekend's queue doesn't all run on Monday.
local function too_late(window)
  if entry.grace and entry.grace ~= '-1' then
    local grace = number_field('grace', entry.grace)
    if is_new(window) and NOW > STARTS_AT + grace then
      return 'missed'
    end
  end
  return nil
end
