-- renew: a worker keeps the right to execute a window.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] owner   ARGV[7] fence that its begin was given   ARGV[8] lease ms, from now
-- ARGV[9] 1 if the message says that the window is tracked, else 0
--
-- returns {'renewed'}   also where its lease had run out and nobody began since
--         {'stale'}     another began since, it was handed over, or it has its outcome
--         {'newer', version}

local verdict = hold(ARGV[6], ARGV[7], ARGV[9] == '1', run_state())
if verdict ~= 'run' then
  return {'stale'}
end
if redis.call('PEXPIRE', RUN, ARGV[8]) == 0 then -- a lease that is there needs no memory, also where the server is full
  redis.call('SET', RUN, 'run:' .. ARGV[6] .. ':' .. ARGV[7], 'PX', ARGV[8])
end
if is_open() then
  redis.call('ZADD', OPEN, int(NOW + ARGV[8] + MARGIN), MEMBER)
end
return {'renewed'}
