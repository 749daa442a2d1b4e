-- Who has a window's execution.

-- include: entry, line, run, window

-- Whether OWNER still has the window: 'run'; 'wait' if it handed it to a retry; nil if it is stale. After its lease
-- it has the window again, unless another execution began the window, the window went back in line, or, without
-- overlap, another window of the entry runs. A caller without the fence is judged by the run key alone.
local function hold(kind, holder)
  if kind == 'run' or kind == 'wait' then
    return is_owner(holder) and kind or nil
  end
  if kind == 'done' then
    return nil
  end
  if is_open() then
    local window = read_window()
    if window.owner ~= OWNER or int(window.fence) ~= FENCE or window.state ~= 'held'
      or entry.overlap ~= 'allow' and another_runs() then
      return nil
    end
    if redis.call('HGET', ENTRY, 'running') then
      touch_entry()
      redis.call('HSET', ENTRY, 'running', START) -- another window may have begun since
    end
    return 'run'
  end
  -- Nobody has it. Where the run key alone decides, its last owner has it again.
  return FENCE ~= '0' and (not TRACKED or not passed()) and 'run' or nil
end
