-- include: line

-- A new window is published first, and waits only once it begins.
local function admission_before_take(window)
  if entry.overlap == 'allow' or not last_that_began() or is_new(window) and window.state ~= 'waits_turn' then
    return nil
  end
  if waits_for(window) then
    return {state = 'waits_turn', in_line = true}
  end
  if is_taken_up(window) then
    redis.call('HSET', ENTRY, 'running', START)
  end
  if window.state == 'again' then
    redis.call('HSET', ENTRY, 'waits', '1') -- it stays in line until it begins
  end
end
