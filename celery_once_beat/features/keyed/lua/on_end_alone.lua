-- A key's window that is to run again waits until then, by its run key. It has no maximum of executions.

-- include: run
-- takes: keyed:flag

local function keyed_on_end_alone(standing, retry)
  if standing == 'wait' and retry == NO_RETRY then
    local left = math.max(redis.call('PTTL', RUN), 1)
    redis.call('PEXPIRE', RUN, left)
    return left -- the reply to this one's finish was lost
  end
  if standing == 'run' and KEYED and AGAIN and AGAIN > 0 then
    redis.call('DEL', RUN) -- frees memory first
    redis.call('SET', RUN, 'wait:' .. int(NO_RETRY) .. ':' .. OWNER, 'PX', AGAIN)
    return AGAIN
  end
end
