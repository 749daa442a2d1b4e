local function is_waiting(window)
  return window.state == 'waits_turn' or window.state == 'waits_slot'
end

-- It is in line until it begins, also while its message is out.
local function in_line(window)
  return is_waiting(window) or window.state == 'again_due'
end
