-- hand_over: a worker gives its window to the retry that it is about to publish.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] owner   ARGV[7] fence that its begin was given; 0 where the owner doesn't know it: only the run key counts
-- ARGV[8] retry number   ARGV[9] ms until the retry is due
-- ARGV[10] start_timeout ms: how much later it should have begun
-- ARGV[11] 1 if the message says that the window is tracked, else 0
--
-- returns {'handed over'}   it waits for the message with that retry number; a retry is no death: the attempt
--                           doesn't count
--         {'stale'}         another began since, it was handed over to another retry, or it has its outcome
--         {'newer', version}

local OWNER, RETRY, DELAY = ARGV[6], tonumber(ARGV[8]), tonumber(ARGV[9])
local verdict, number = hold(OWNER, ARGV[7], ARGV[11] == '1', run_state())
if verdict == 'wait' and number == RETRY then
  redis.call('PEXPIRE', RUN, redis.call('PTTL', RUN))
  return {'handed over'}
end
if verdict ~= 'run' then
  return {'stale'}
end
local open = is_open()
local window = open and read_window()
-- Where the run key alone decides, it must outlive the wait for a worker too.
local hold_for = DELAY + MARGIN
if not open then
  hold_for = math.max(hold_for, RETENTION)
end
redis.call('DEL', RUN) -- frees memory first
redis.call('SET', RUN, 'wait:' .. ARGV[8] .. ':' .. OWNER, 'PX', int(hold_for))
if open then
  window.attempts = math.max(window.attempts - 1, 0)
  window.retry, window.released = RETRY, TO_RETRY
  window.publishes, window.turn = 1, window.turn + 1
  write_window(window, NOW + DELAY + math.max(ARGV[10], MARGIN))
end
return {'handed over'}
