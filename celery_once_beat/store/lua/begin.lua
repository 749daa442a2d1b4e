-- begin: a worker takes the right to execute a window. Sent again by the same owner, it renews the lease and answers as
-- it did the first time.
--
-- With overlap skip, what began before goes first: a new window is skipped while another of its entry runs, waits for its
-- retry, is to be recovered, or waits itself.
--
-- With a buffer it waits then, and this copy is to be parked: buffer_one keeps the newest of the new ones that wait, and the
-- others are skipped; buffer_all keeps MOST_WAITING. With NO_PLACE it waits, too: that is the name of its limit, which has no
-- place for it.
--
-- MARKS: WORKERS is given, and the worker's name goes there. It is for people, so not each begin says it.
--
-- returns 'begun <fence> <attempt> <last_done> <overlap>'   run it; last_done is '' where there is none, overlap the
--                                                        entry's, else the task's. One text, since it is read for each
--                                                        window; overlap is the end, since a foreign one may hold blanks
--         {'busy', reason}      refuse this copy, and count it: 'running', 'waiting for retry <n>', 'waiting to run
--                               again', 'another window of its entry runs', or 'handed over to retry <n>' if this copy
--                               is an older one
--         {'busy', 'runs alone'}   it runs, and nobody recovers it: its run key alone decides. This copy comes again,
--                               since the other may be dead; it isn't counted
--         {'closed', outcome, called, why}   this begin closed it: a limit was reached, or it is skipped. called is '', or the
--                               start of the window whose turn it is now; why is there if the outcome alone doesn't say it
--         {'closed', ''}        it was closed before, and perhaps ordered since; this copy is refused, and counted
--         {'buffered', start, called, skipped...}   it waits for that window, '' for a place. called is '', or the start of the
--                               window whose turn it is; skipped are those that are passed over now
--         {'elsewhen', now}     with NOW_ONLY: the server's time (ms) lies outside of the window

local NOW = server_time()
if NOW_ONLY then -- only then is the window's span read
  if elsewhen() then
    return {'elsewhen', int(NOW)}
  end
end

local entry = read_entry()
check_entry()
check_tells()
local kind, owner, number = settle()
local open = TRACKED and is_open()
local window = open and read_window()

-- For people, beside the history. Display only: pcall, since a wrong-typed key here must not block begin.
local function count_by_window()
  local copies = redis.pcall('HINCRBY', REFUSED, START, 1)
  if type(copies) ~= 'number' then
    return
  end
  redis.call('PEXPIRE', REFUSED, entry.ttl)
  local starts = redis.call('HKEYS', REFUSED)
  table.sort(starts)
  for position = 1, #starts - HISTORY_SIZE do
    redis.call('HDEL', REFUSED, starts[position])
  end
end

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
  return {'closed', number, entry.buffered and called_window() or ''} -- the reply to the begin that closed it was lost
end
if kind == 'done' or BY_SCHEDULE and window and window.backfill == 1 then
  return refuse('closed', '')
end
local overlap = (entry.overlap or '-') == '-' and OVERLAP or entry.overlap
local buffers = string.sub(overlap, 1, 7) == 'buffer_'
-- How often a key's window has begun: '<start> <number>' of the one that began last.
local function key_attempts()
  local start, number = string.match(redis.call('HGET', ENTRY, 'attempts') or '', '^(%S+) (%d+)$')
  return start == START and whole(number) or 0
end
local function answer(fence, attempt)
  if MARKS then
    mark_worker()
  end
  return 'begun ' .. fence .. ' ' .. int(attempt) .. ' ' .. (entry.last_done or '') .. ' ' .. overlap
end
-- The reply to this delivery's begin was lost, or came after its lease, and nobody began since.
local began = open and not kind and window.owner == OWNER and window.released == HELD
if began or kind == 'run' and owner == OWNER then
  local fence = int(began and window.fence or number)
  redis.call('DEL', RUN) -- needs no memory, for a full server
  set_running(fence) -- so that the lease runs anew, and WAIT has a write to wait for
  if open then
    set_deadline(NOW + LEASE + MARGIN)
  end
  return answer(fence, open and window.attempts or KEYED and math.max(key_attempts(), 1) or 1)
end
if kind == 'run' and not (open or TRACKED and passed()) then
  return {'busy', 'runs alone'}
end
if kind == 'run' then
  return refuse('busy', 'running')
end
if kind == 'wait' and number ~= RETRY then
  return refuse('busy', number == NO_RETRY and 'waiting to run again' or 'waiting for retry ' .. int(number))
end
if not open and TRACKED and passed() then
  return refuse('closed', '')
end

-- Grows with every begin of the entry, also where a replica's clock is behind. After a failover that lost the last begins,
-- the clock alone keeps it growing.
local fence = math.max(entry.fence + 1, window and window.fence + 1 or 0, NOW)
if not open then
  if NO_PLACE ~= '' then
    return {'busy', 'runs alone'} -- nobody would call it
  end
  -- NX alone decides: the message is of an untracked entry or a key, or of a time that the store forgot.
  fence = int(fence)
  local attempt = KEYED and key_attempts() + 1 or 1
  redis.call('HSET', ENTRY, 'fence', fence)
  if not KEYED then
    keep_entry()
  else
    redis.call('HSET', ENTRY, 'attempts', START .. ' ' .. int(attempt))
    if redis.call('PTTL', ENTRY) < tonumber(RETENTION) then
      redis.call('PEXPIRE', ENTRY, RETENTION)
    end
  end
  set_running(fence)
  return answer(fence, attempt)
end

if window.released == TO_RUN_AGAIN then
  return refuse('busy', 'waiting to run again')
end
if RETRY < window.retry then
  return refuse('busy', 'handed over to retry ' .. int(window.retry))
end
local outcome = limit_reached(window) or too_late(window)
local waits = false
if overlap == 'skip' and not outcome then
  waits = last_that_waits() == START
  local another_runs_now = another_runs()
  if window.fence == 0 and window.backfill == 0 then
    outcome = (another_runs_now or another_goes_first() or another_waits_for_place()) and 'skipped'
  elseif another_runs_now then
    -- It has begun before, or was ordered, so it waits. It is overdue: a beat publishes it again once the other has ended.
    touch_entry()
    wait_for_turn()
    -- The beat that published this copy may confirm only now: that would put it off.
    window.turn, window.taken = window.turn + 1, 0
    write_window(window, NOW)
    return refuse('busy', 'another window of its entry runs')
  end
elseif buffers and not outcome then
  waits = last_that_waits() == START
  local before, to_call = waits_for(window)
  if before then
    local over, itself = {}, false
    if overlap ~= 'buffer_all' and window.fence == 0 and window.backfill == 0 then
      over, itself = passed_over(to_call and before)
    elseif window.fence == 0 and window.backfill == 0 and window.released == HELD then
      itself = #all_that_wait() >= MOST_WAITING
      window.failure = itself and MOST_WAITING .. ' windows of its entry wait already'
    end
    if itself then
      outcome = 'skipped'
    else
      pass_over(over, OWNER)
      -- What waits already may have been told of it in a reply that was lost.
      local called = to_call and call_window(before) or window.released == WAITS_FOR_TURN and called_window() or ''
      start_waiting(window)
      local reply = {'buffered', before, called}
      for _, each in ipairs(over) do
        reply[#reply + 1] = each.start
      end
      return reply
    end
  end
end
if NO_PLACE ~= '' and not outcome then
  start_waiting(window, NO_PLACE, overlap == 'allow')
  return {'buffered', '', ''}
end
local note_consumed
if entry.trying and window.fence == 0 then
  note_consumed = see_consumed(window)
end
local next_called
if outcome then
  next_called = close_window(window, outcome, OWNER)
else
  redis.call('DEL', RUN) -- needs no memory, for a full server
end
if note_consumed then
  note_consumed()
end
if outcome then
  return {'closed', outcome, next_called or '', window.failure or nil}
end
if window.released >= WAITS_FOR_TURN then
  forget_message(START, window)
end
window.attempts, window.turn = window.attempts + 1, window.turn + 1
window.fence, window.owner, window.retry = fence, OWNER, RETRY
window.released, window.taken, window.publishes = HELD, 0, 0
fence = int(fence)
set_running(fence)
if overlap == 'skip' or buffers then
  redis.call('HSET', ENTRY, 'running', START)
  if waits then
    redis.call('HDEL', ENTRY, 'waiting')
  end
end
write_window(window, NOW + LEASE + MARGIN, 'fence', fence)
return answer(fence, window.attempts)
