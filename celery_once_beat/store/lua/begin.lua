-- begin: a worker takes the right to execute a window. Sent again by the same owner, it renews the lease and answers as
-- it did the first time. Only a window that it skipped is then {'closed', ''}, and the copy counted.
--
-- Where windows of an entry don't overlap, one that has begun before goes first; see line.lua. With overlap skip, a
-- new window without the turn is skipped. With a buffer it waits, and this copy is dropped: buffer_one keeps the
-- newest new window and skips the rest; buffer_all keeps MOST_WAITING. NO_SLOT names a limit without a free slot: the
-- window waits.
--
-- MARKS: WORKERS is given, and the worker's name goes there. It is for people, so not each begin says it.
--
-- returns 'begun <fence> <attempt> <last_done> <overlap>'   run it; last_done is '' where there is none, overlap the
--                                                        entry's, else the task's. One text, since it is read for each
--                                                        window; overlap is the end, since a foreign one may hold blanks
--         {'busy', reason}      refuse this copy, and count it: 'running', 'waiting for retry <n>', 'waiting to run
--                               again', or 'handed over to retry <n>' if this copy is an older one
--         {'busy', 'runs alone'}   it runs, and nobody recovers it: its run key alone decides. This copy comes again,
--                               since the other may be dead; it isn't counted
--         {'closed', outcome, why}   this begin closed it: a limit was reached, or it is skipped; why is there if the
--                               outcome alone doesn't say it
--         {'closed', ''}        it was closed before, and perhaps ordered since; this copy is refused, and counted
--         {'waits', start, skipped...}   it waits for that window, '' for a slot; a beat publishes it then. skipped are those
--                               that are passed over now
--         {'elsewhen', now}     with NOW_ONLY: the server's time (ms) lies outside of the window

-- include: alerts, end_rules, ends, entry, line, run, unconsumed, window, workers

if NOW_ONLY then -- only then is the window's span read
  if elsewhen() then
    return {'elsewhen', int(NOW)}
  end
end

entry = read_entry()
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
  return {'closed', number} -- the reply to the begin that closed it was lost
end
if kind == 'done' or BY_SCHEDULE and window and window.backfill == 1 then
  return refuse('closed', '')
end
local overlap = (entry.overlap or '-') == '-' and OVERLAP or entry.overlap
local one_by_one = overlap == 'skip' or string.sub(overlap, 1, 7) == 'buffer_'
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
local began = open and not kind and window.owner == OWNER and window.state == 'held'
  and not (one_by_one and another_runs())
if began or kind == 'run' and owner == OWNER then
  local fence = int(began and window.fence or number)
  redis.call('DEL', RUN) -- needs no memory, for a full server
  set_running(fence) -- so that the lease runs anew, and WAIT has a write to wait for
  if open then
    set_deadline(NOW + LEASE + MARGIN)
  end
  if open and one_by_one then
    redis.call('HSET', ENTRY, 'running', START) -- another window may have begun since
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

-- Grows with every begin of the entry, even if the clock goes back. If a failover lost the last begins, only NOW
-- exceeds the lost fence.
local fence = math.max(entry.fence + 1, window and window.fence + 1 or 0, NOW)
if not open then
  if NO_SLOT ~= '' then
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

if window.state == 'again' then
  return refuse('busy', 'waiting to run again')
end
if RETRY < window.retry then
  return refuse('busy', 'handed over to retry ' .. int(window.retry))
end
-- buffer_one: this window would wait too. Returns the waiting new windows to skip (all but the newest), and whether
-- this one is skipped itself. Spares `first`, which is next, and windows whose message is out.
local function passed_over(first)
  local newest, others, over = START, {}, {}
  for _, each in ipairs(read_line()) do
    if each.window.state == 'waits_turn' and is_new(each.window) and each.window.taken == 0 and each.start ~= first then
      others[#others + 1] = each
      newest = each.start > newest and each.start or newest
    end
  end
  for _, each in ipairs(others) do
    if each.start ~= newest then
      over[#over + 1] = each
    end
  end
  return over, newest ~= START
end

-- Decides whether this window begins now. Returns nil if so; else the outcome that ends it, or the state in which it
-- waits. Then the window that it waits for, and the windows to skip.
local function admission()
  local outcome = limit_reached(window) or too_late(window)
  if outcome then
    return outcome
  end
  local first = one_by_one and waits_for(window)
  if not first then
    return NO_SLOT ~= '' and 'waits_slot' or nil, '', {}
  end
  local over, itself = {}, false
  if is_new(window) then
    if overlap == 'skip' then
      return 'skipped'
    elseif overlap ~= 'buffer_all' then
      over, itself = passed_over(first)
    elseif window.state == 'held' and #read_line() >= MOST_WAITING then
      itself, window.failure = true, MOST_WAITING .. ' windows of its entry wait already'
    end
  end
  return itself and 'skipped' or 'waits_turn', first, over
end

local found, first, over = admission()
local note_consumed = entry.trying and window.fence == 0 and see_consumed(window)
if found and STATES[found] then
  redis.call('DEL', RUN) -- a retry that came isn't waited for any more
  pass_over(over, OWNER)
  touch_entry()
  local fields = one_by_one and {'waits', '1'} or {}
  if NO_SLOT ~= '' then
    fields[#fields + 1], fields[#fields + 2] = 'limit', NO_SLOT
  end
  start_waiting(window, found, unpack(fields))
elseif found then
  close_window(window, found, OWNER)
else
  redis.call('DEL', RUN) -- needs no memory, for a full server
end
if note_consumed then
  note_consumed()
end
if found and STATES[found] then
  if found == 'waits_turn' then -- else it has the turn itself
    call_next()
  end
  local reply = {'waits', first}
  for _, each in ipairs(over) do
    reply[#reply + 1] = each.start
  end
  return reply
elseif found then
  return {'closed', found, window.failure or nil}
end
local was_in_line = in_line(window)
window.attempts, window.turn = window.attempts + 1, window.turn + 1
window.fence, window.owner, window.retry = fence, OWNER, RETRY
window.state, window.taken, window.publishes = 'held', 0, 0
fence = int(fence)
set_running(fence)
if one_by_one then
  redis.call('HSET', ENTRY, 'running', START)
end
write_window(window, NOW + LEASE + MARGIN, 'fence', fence)
if was_in_line and one_by_one and not read_line()[1] then
  no_line()
end
return answer(fence, window.attempts)
