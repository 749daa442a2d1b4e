-- call: it is the turn of a window that waits, or a place of its limit is free. Who calls publishes its message, then confirms
-- with the turn. If it dies before, the window is overdue soon.
--
-- OF_LIMIT: a place is free. BY_BEAT: the caller doesn't publish it; it is overdue now.
--
-- returns {'call', turn, message}   message is '' where there is none: it couldn't be parked. The window is overdue now
--         {'out'}                   it was called for a place before, and its message is out, or a beat is about to publish it:
--                                   it asks for a place itself once somebody consumes that
--         {'gone'}                  it doesn't wait for that

local NOW = server_time()
local entry = read_entry()
local kind, _, number = run_state()
if not is_open() or kind == 'run' or kind == 'done' then
  return {'gone'}
end
local window = read_window()
-- One that hasn't waited yet: the worker that asked for its place died before its begin. Its message may be lost.
local asked = OF_LIMIT and (window.released == HELD or window.released == RUN_AGAIN_DUE) and not kind
if not asked and window.released ~= (OF_LIMIT and WAITS_FOR_PLACE or WAITS_FOR_TURN) then
  return {'gone'}
end
if OF_LIMIT and not asked and (window.taken == SENT or BY_BEAT and window.taken == 1) then
  return {'out'}
end
if not OF_LIMIT and last_that_waits() ~= START then
  return {'gone'}
end
local message = redis.pcall('GET', MESSAGE)
message = type(message) == 'string' and message or ''
touch_entry()
if not asked then
  call_window(START)
end
if asked or message == '' or BY_BEAT then
  set_deadline(NOW)
end
return {'call', window.turn, message}
