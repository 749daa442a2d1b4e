-- abandon: somebody gives a window up. Its outcome is cancelled, and it isn't published again. A message that is out for it
-- is refused; so is the end of an execution that continues.
--
-- What runs is left alone, unless RUNNING: nothing here stops its execution, and the next window of an entry without overlap
-- no longer waits for it.
--
-- returns {'finished'}          the outcome is recorded, now or when this order was sent before
--         {'busy', 'running'}   it runs, and is left alone
--         {'unchanged'}         it owes no outcome

-- include: ends, run, window

local kind, owner = run_state()
local window = read_window()
if not window then
  if kind ~= 'done' or owner ~= OWNER then
    return {'unchanged'}
  end
  redis.call('PEXPIRE', RUN, math.max(redis.call('PTTL', RUN), 1)) -- a write, for WAIT to wait for
  return {'finished'}
end
if kind == 'run' and not RUNNING then
  return {'busy', 'running'}
end
close_window(window, 'cancelled', OWNER)
return {'finished'}
