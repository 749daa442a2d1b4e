-- An execution that outlived its lease has the turn again, unless another window runs or waits for its retry.

-- include: entry, turn, window
-- fields: overlap

local function admission_lost_turn()
  local start = entry.overlap ~= 'allow' and last_that_began()
  if not start then
    return false
  end
  local window, deadline = another(start)
  if window and is_taken_up(window) and deadline > NOW then
    return true
  end
  touch_entry()
  redis.call('HSET', ENTRY, 'running', START)
  return false
end
