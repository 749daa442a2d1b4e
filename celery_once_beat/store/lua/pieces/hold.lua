-- Who has a window's execution.

-- include: entry, line, run, window

-- Whether OWNER still has the window, from what run_state() said: 'run', 'wait' if it handed the window to a retry, nil
-- if it is stale. After its lease ran out it has the window again, unless somebody began since: this window or, without
-- overlap, another of its entry. A caller that doesn't know the fence can only go by the run key.
local function hold(kind, holder)
  if kind == 'run' or kind == 'wait' then
    return is_owner(holder) and kind or nil
  end
  if kind == 'done' then
    return nil
  end
  if is_open() then
    local window = read_window()
    if window.owner ~= OWNER or int(window.fence) ~= FENCE or window.state ~= 'held' or another_runs() then
      return nil
    end
    if redis.call('HGET', ENTRY, 'running') then
      touch_entry()
      redis.call('HSET', ENTRY, 'running', START) -- it may not be the last that began
    end
    return 'run'
  end
  -- Nobody has it. Where the run key alone decides, its last owner has it again.
  return FENCE ~= '0' and (not TRACKED or not passed()) and 'run' or nil
end
