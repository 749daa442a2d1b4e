-- park: a copy of a window's message met a begin that answered 'buffered': it is kept until the window is called. Sent again,
-- it answers the same.
--
-- TEXT is the message, JSON; worker/waiting.py writes and reads it. That of a retry stays as it came first: a beat that publishes
-- the window again knows nothing of what the retry was given.
--
-- returns {'parked'}
--         {'called'}      it was called meanwhile: this copy may begin
--         {'unchanged'}   it doesn't wait, or this copy is older than the retry that was handed over

local NOW = server_time()
local entry = read_entry()
local kind = run_state()
if not is_open() or kind == 'run' or kind == 'done' then
  return {'unchanged'}
end
local window = read_window()
if window.released < WAITS_FOR_TURN or RETRY < window.retry then
  return {'unchanged'}
end
if last_that_waits() == START then
  return {'called'}
end
touch_entry()
if RETRY == 0 then
  redis.call('SET', MESSAGE, TEXT, 'PX', entry.ttl)
elseif not redis.call('SET', MESSAGE, TEXT, 'PX', entry.ttl, 'NX') then
  redis.call('PEXPIRE', MESSAGE, entry.ttl)
end
return {'parked'}
