-- The run key of a window: run:<fence>:<owner>, wait:<retry>:<owner> or done:<outcome>:<owner>.

-- include: values

-- The retry number of a window that is to run again by itself. No message has it.
local NO_RETRY = 999999999999999

-- Its kind (nil, 'run', 'wait' or 'done'), the owner, and the fence, retry number or outcome.
local function run_state(key)
  local value = redis.call('GET', key or RUN)
  if not value then
    return nil
  end
  local kind, detail, owner = string.match(value, '^(%l+):(%w+):(.*)$')
  local number = kind and whole(detail)
  if kind == 'done' and not number or number and (kind == 'run' or kind == 'wait') then
    return kind, owner, number or detail
  end
  error('BADDATA ' .. (key or RUN) .. ' is neither run:, wait: nor done:')
end

-- `fence` is its text.
local function set_running(fence)
  redis.call('SET', RUN, 'run:' .. fence .. ':' .. OWNER, 'PX', LEASE)
end

-- The marker lives for the retention if it alone shows that the window ended, else for the marker_ttl.
local function mark_done(owner, outcome, only_sign)
  redis.call('SET', RUN, 'done:' .. outcome .. ':' .. owner, 'PX', only_sign and RETENTION or MARKER_TTL)
end

-- FENCE '0': a worker's main process, which knows the delivery and no fence. It is the owner of all of its executions.
local function is_owner(holder)
  return holder == OWNER or FENCE == '0' and string.sub(holder, 1, #OWNER + 1) == OWNER .. ':'
end
