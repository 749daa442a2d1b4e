-- An execution that outlived its lease has the turn again, unless another window runs or waits for its retry.

-- include: entry, turn
-- fields: overlap

local function admission_lost_turn()
  local by_task = (entry.overlap or '-') == '-'
  if entry.overlap == 'allow' or by_task and not last_that_began() then
    return false -- nobody says that windows of the entry run one by one
  end
  local window = another_taken_up()
  if window and window.deadline > NOW then
    return true
  end
  touch_entry()
  redis.call('HSET', ENTRY, 'running', START)
  return false
end
