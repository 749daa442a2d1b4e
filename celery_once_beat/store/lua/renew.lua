-- renew: a worker keeps the right to execute a window, for LEASE ms from now.
--
-- returns {'renewed'}   also where its lease had run out and nobody began since
--         {'stale'}     another began since, it was handed over, or it has its outcome

if hold(run_state()) ~= 'run' then
  return {'stale'}
end
if redis.call('PEXPIRE', RUN, LEASE) == 0 then -- needs no memory, for a full server
  set_running(FENCE)
end
if is_open() then
  set_deadline(NOW + LEASE + MARGIN)
end
return {'renewed'}
