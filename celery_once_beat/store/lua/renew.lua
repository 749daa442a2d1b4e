-- renew: a worker keeps the right to execute a window, for LEASE ms from now.
--
-- returns {'renewed'}   also after its lease, if nobody began since
--         {'stale'}     another began, it was handed over, it is in line again, or it has its outcome

-- include: entry, hold, run

local kind, owner = run_state()
-- While the lease lasts the run key alone decides. Else the account shows whether another began since.
entry = kind == 'run' and read_fields() or read_entry()
if hold(kind, owner) ~= 'run' then
  return {'stale'}
end
if redis.call('PEXPIRE', RUN, LEASE) == 0 then -- needs no memory, for a full server
  set_running(FENCE)
end
redis.call('ZADD', OPEN, 'XX', NOW + LEASE + MARGIN, MEMBER) -- if it is open
return {'renewed'}
