-- begin: a worker takes the right to execute a window.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] owner: one delivery of a message   ARGV[7] lease ms   ARGV[8] retry number of the message
-- ARGV[9] 1 if the message says that the window is tracked   ARGV[10] start, server ms
--
-- returns {'begun', fence, attempt, last_done}   run it; last_done is '' where there is none
--         {'busy', reason}      another has it, or an older copy came late; refuse this copy
--         {'closed', outcome}   it has its outcome; outcome is '' where it was closed before
--         {'newer', version}

local OWNER, LEASE, RETRY = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local kind, owner, number = settle()
local open = ARGV[9] == '1' and is_open()

-- A refused copy is counted; the reply says why.
local function refuse(...)
  if entry.cursor then
    redis.call('HINCRBY', ENTRY, 'refused', 1)
  end
  return {...}
end

if kind == 'done' then
  return refuse('closed', '')
end
if kind == 'run' and owner == OWNER then
  -- The reply to this delivery's begin was lost.
  -- Written once more, so that WAIT has a write to wait for.
  local attempt = open and read_window().attempts or 1
  redis.call('SET', RUN, 'run:' .. OWNER .. ':' .. int(number), 'PX', LEASE)
  return {'begun', int(number), attempt, entry.last_done or ''}
end
if kind == 'run' then
  return refuse('busy', 'running')
end
if kind == 'wait' and number ~= RETRY then
  return refuse('busy', 'waiting for retry ' .. int(number))
end
if not open and ARGV[9] == '1' and passed() then
  return refuse('closed', '')
end

-- Grows with every begin of the entry; the clock keeps it growing over a failover that lost the last one.
local fence = math.max(entry.fence + 1, NOW)
if not open then
  -- NX alone decides: the message is of an untracked entry, or of a time that the store forgot.
  redis.call('HSET', ENTRY, 'fence', int(fence))
  keep_entry()
  redis.call('SET', RUN, 'run:' .. OWNER .. ':' .. int(fence), 'PX', LEASE)
  return {'begun', int(fence), 1, entry.last_done or ''}
end

local window = read_window()
if window.released == 2 then
  return refuse('busy', 'waiting to run again')
end
if RETRY < window.retry then
  return refuse('busy', 'handed over to retry ' .. int(window.retry))
end
local outcome = limit_reached(window) or too_late(window, tonumber(ARGV[10]))
if outcome then
  close_window(window, outcome, OWNER)
  return {'closed', outcome}
end
window.attempts = window.attempts + 1
window.fence, window.owner, window.retry = fence, OWNER, RETRY
window.released, window.taken, window.publishes, window.turn = 0, 0, 0, window.turn + 1
redis.call('HSET', ENTRY, 'fence', int(fence))
keep_entry()
redis.call('SET', RUN, 'run:' .. OWNER .. ':' .. int(fence), 'PX', LEASE)
write_window(window, NOW + LEASE + MARGIN)
return {'begun', int(fence), window.attempts, entry.last_done or ''}
