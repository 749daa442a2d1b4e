-- begin: a worker takes the right to execute a window.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)   KEYS[5] refused hash: start → copies refused, of the latest windows
-- ARGV[6] owner: one delivery of a message   ARGV[7] lease ms   ARGV[8] retry number of the message
-- ARGV[9] 1 if the message says that the window is tracked, else 0; 'keyed' for a window of a user's key: it is open
-- nowhere, and of an entry hash it has the fence alone, as long as its windows are remembered
-- ARGV[10] start, server ms   ARGV[11] overlap, as the task says: 'allow' | 'skip'; what the entry says goes first
-- ARGV[12] absent, or where the window is to run at once or not at all its end, 0: none
--
-- Where windows of an entry don't overlap, what began before goes first: a new one is skipped while another runs, waits for
-- its retry, died and is to be recovered, or waits itself.
--
-- returns {'begun', fence, attempt, last_done}   run it; last_done is '' where there is none
--         {'busy', reason}      refuse this copy, which is counted: 'running', 'waiting for retry <n>', 'waiting to
--                               run again', 'another window of its entry runs', or 'handed over to retry <n>' where
--                               this copy is an older one
--         {'busy', 'runs alone'}   it runs, and nobody recovers it: its run key alone decides. This copy is to come
--                               again, since the other may be dead; it isn't counted
--         {'closed', outcome}   this begin closed it, since a limit was reached: abandoned, dropped, expired, missed,
--                               or since another window of its entry runs, or goes first: skipped
--         {'closed', ''}        it was closed before; refuse this copy, which is counted
--         {'elsewhen', now}     it is not the window of now, server ms; only where ARGV[12] is there
--         {'newer', version}

if ARGV[12] and (NOW < tonumber(ARGV[10]) or ARGV[12] ~= '0' and NOW >= tonumber(ARGV[12])) then
  return {'elsewhen', int(NOW)}
end

local REFUSED = KEYS[5]
local OWNER, LEASE, RETRY = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local LIMITS = {abandoned = true, dropped = true, expired = true, missed = true, skipped = true}
local kind, owner, number = settle()
local open = ARGV[9] == '1' and is_open()
local window = open and read_window()

-- For people, beside the history: what else may be in its place stops no begin.
local function count_by_window()
  local counted_so = redis.pcall('HINCRBY', REFUSED, START, 1)
  if type(counted_so) ~= 'number' then
    return
  end
  redis.call('PEXPIRE', REFUSED, entry.ttl)
  local starts = redis.call('HKEYS', REFUSED)
  table.sort(starts)
  for position = 1, #starts - HISTORY_SIZE do
    redis.call('HDEL', REFUSED, starts[position])
  end
end

-- A refused copy is counted; the reply says why.
local function refuse(...)
  if entry.cursor then
    touch_entry()
    redis.call('HINCRBY', ENTRY, 'refused', 1)
    if HISTORY_SIZE > 0 then
      count_by_window()
    end
  end
  return {...}
end

if kind == 'done' and owner == OWNER and LIMITS[number] then
  return {'closed', number} -- the reply to the begin that closed it was lost
end
if kind == 'done' then
  return refuse('closed', '')
end
-- The reply to this delivery's begin was lost, or came after its lease, and nobody began since.
local began = open and not kind and window.owner == OWNER and window.released == HELD
if began or kind == 'run' and owner == OWNER then
  -- Written once more, so that the lease runs anew and WAIT has a write to wait for.
  local fence = int(began and window.fence or number)
  if began then
    touch_entry()
  else
    redis.call('PEXPIRE', RUN, LEASE)
  end
  redis.call('SET', RUN, 'run:' .. OWNER .. ':' .. fence, 'PX', LEASE)
  if open then
    redis.call('ZADD', OPEN, int(NOW + LEASE + MARGIN), MEMBER)
  end
  return {'begun', fence, open and window.attempts or 1, entry.last_done or ''}
end
if kind == 'run' and not (open or ARGV[9] == '1' and passed()) then
  return {'busy', 'runs alone'}
end
if kind == 'run' then
  return refuse('busy', 'running')
end
if kind == 'wait' and number ~= RETRY then
  return refuse('busy', int(number) == NO_RETRY and 'waiting to run again' or 'waiting for retry ' .. int(number))
end
if not open and ARGV[9] == '1' and passed() then
  return refuse('closed', '')
end

-- Grows with every begin of the entry, whatever the clock says: a replica's may be behind. Where a failover lost the last
-- begins, the clock alone keeps it growing.
local fence = math.max(math.max(entry.fence, window and window.fence or 0) + 1, NOW)
if not open then
  -- NX alone decides: the message is of an untracked entry or a key, or of a time that the store forgot.
  redis.call('HSET', ENTRY, 'fence', int(fence))
  if ARGV[9] ~= 'keyed' then
    keep_entry()
  elseif redis.call('PTTL', ENTRY) < RETENTION then
    redis.call('PEXPIRE', ENTRY, RETENTION)
  end
  redis.call('SET', RUN, 'run:' .. OWNER .. ':' .. int(fence), 'PX', LEASE)
  return {'begun', int(fence), 1, entry.last_done or ''}
end

if window.released == TO_RUN_AGAIN then
  return refuse('busy', 'waiting to run again')
end
if RETRY < window.retry then
  return refuse('busy', 'handed over to retry ' .. int(window.retry))
end
local outcome = limit_reached(window) or too_late(window, tonumber(ARGV[10]))
local overlap = (entry.overlap or '-') == '-' and ARGV[11] or entry.overlap
local one_by_one = not outcome and overlap == 'skip'
local waits = one_by_one and last_that_waits() == START
local is_new = window.fence == 0 and window.backfill == 0
if one_by_one and not is_new and another_runs() then
  -- One that has begun before, or was ordered, waits for the other. It is overdue: a beat publishes it again once the
  -- other has ended.
  touch_entry()
  wait_for_turn()
  -- The beat that published this copy may confirm only now: that would put it off.
  window.turn, window.taken = window.turn + 1, 0
  write_window(window, NOW)
  return refuse('busy', 'another window of its entry runs')
end
if one_by_one and is_new and (another_runs() or another_goes_first()) then
  outcome = 'skipped'
end
local note_consumed = see_consumed(window)
if outcome then
  close_window(window, outcome, OWNER)
  note_consumed()
  return {'closed', outcome}
end
touch_entry()
note_consumed()
window.attempts = window.attempts + 1
window.fence, window.owner, window.retry = fence, OWNER, RETRY
window.released, window.taken, window.publishes, window.turn = HELD, 0, 0, window.turn + 1
redis.call('SET', RUN, 'run:' .. OWNER .. ':' .. int(fence), 'PX', LEASE)
if overlap == 'skip' then
  redis.call('HSET', ENTRY, 'running', START)
  if waits then
    redis.call('HDEL', ENTRY, 'waiting')
  end
end
write_window(window, NOW + LEASE + MARGIN, 'fence', int(fence))
return {'begun', int(fence), window.attempts, entry.last_done or ''}
