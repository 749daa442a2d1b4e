-- renew: a worker keeps the right to execute a window, for LEASE ms from now.
--
-- returns {'renewed'}   also after its lease, if nobody began since and no rule closed it
--         {'stale'}     another began, it was handed over, it is in line again, or it has its outcome

-- include: fields, run

local kind, owner = run_state()

local function renew()
  if redis.call('PEXPIRE', RUN, LEASE) == 0 then -- needs no memory, for a full server
    set_running(FENCE)
  end
  redis.call('ZADD', OPEN, 'XX', NOW + LEASE + MARGIN, MEMBER) -- if it is open
  return {'renewed'}
end

if kind == 'run' and is_owner(owner) then
  read_fields() -- checks the version: while the lease lasts the run key decides, and nothing else is read
  return renew()
end

-- include: hold

-- The account shows whether another began since.
return hold(kind, owner) == 'run' and renew() or {'stale'}
