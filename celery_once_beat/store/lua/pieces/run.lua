-- The run key of a window: run:<owner>:<fence>, wait:<retry>:<owner> or done:<outcome>:<owner>.

-- include: values

-- The retry number of a window that is to run again by itself. No message has it.
local NO_RETRY = 999999999999999

-- Its kind (nil, 'run', 'wait' or 'done'), the owner, and the fence, retry number or outcome.
local function run_state(key)
  local value = redis.call('GET', key or RUN)
  if not value then
    return nil
  end
  local owner, fence = string.match(value, '^run:(.*):(%d+)$')
  fence = owner and whole(fence)
  if fence then
    return 'run', owner, fence
  end
  local retry
  retry, owner = string.match(value, '^wait:(%d+):(.*)$')
  retry = retry and whole(retry)
  if retry then
    return 'wait', owner, retry
  end
  local outcome
  outcome, owner = string.match(value, '^done:(%a+):(.*)$')
  if outcome then
    return 'done', owner, outcome
  end
  error('BADDATA ' .. (key or RUN) .. ' is neither run:, wait: nor done:')
end

-- `fence` is its text.
local function set_running(fence)
  redis.call('SET', RUN, 'run:' .. OWNER .. ':' .. fence, 'PX', LEASE)
end

-- The marker lives for the retention if it alone shows that the window ended, else for the marker_ttl.
local function mark_done(owner, outcome, only_sign)
  redis.call('SET', RUN, 'done:' .. outcome .. ':' .. owner, 'PX', only_sign and RETENTION or MARKER_TTL)
end
