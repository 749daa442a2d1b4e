-- Who has a window's execution.

-- include: entry, run, window
-- hooks: lost_turn

-- Whether OWNER still has the window: 'run'; 'wait' if it handed it to a retry; 'done' if it recorded its end; nil if it
-- is stale. After its lease it has the window again, unless another execution began the window, the window went back in
-- line, or another window of the entry has its turn. A caller without the fence is judged by the run key alone.
local function hold(kind, holder)
  if kind then
    return is_owner(holder) and kind or nil
  end
  local window = read_window()
  if window then
    local its_own = window.owner == OWNER and int(window.fence) == FENCE and window.state == 'plain'
    return its_own and not lost_turn() and 'run' or nil
  end
  -- It isn't open, and its run key has expired. Where that key alone decides, whoever has begun it has it again.
  return FENCE ~= '0' and (not TRACKED or not is_behind_cursor()) and 'run' or nil
end
