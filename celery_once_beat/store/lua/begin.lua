-- begin: a worker takes the right to execute a window. Sent again by the same owner, it renews the lease and answers as
-- it did the first time, with exceptions: it doesn't repeat why it closed the window, nor which ones it passed over, and
-- a repeated refusal is counted again.
--
-- A feature may end the window or let it wait. One that waits has no message any more: this copy is dropped.
--
-- returns 'begun <fence> <attempt> <last_done> <1 or 0>'   run it; last_done is '' where there is none; 1: its end is to be
--                               recorded at once. One text, since it is read for each window
--         {'busy', reason}      refuse this copy, and count it: 'running', 'waiting for retry <n>', 'waiting to run
--                               again', or 'handed over to retry <n>' if this copy is an older one
--         {'busy', 'runs alone'}   the window isn't in the open set, and it runs or has no free slot. No beat publishes it
--                               again, so this copy has to come back: the other may be dead. It isn't counted
--         {'closed', outcome, why}   a rule ended it just now, or it is skipped; why is there if the
--                               outcome alone doesn't show that
--         {'closed', ''}        it was closed before, and perhaps ordered since; this copy is refused, and counted
--         {'waits', start, skipped...}   it waits for that window, '' for a slot; a beat publishes it then. skipped are those
--                               that are passed over now

-- include: end_rules, entry, run, window
-- hooks: before_all, wants_begin

local refused = before_all()
if refused then
  return refused
end

local kind, owner, detail = run_state()
local window = TRACKED and read_window()
-- See protocol.py: a fence. The account's may be larger than the entry's: a claim takes it from a run key.
local fence = math.max(entry.fence + 1, window and window.fence + 1 or 0, NOW)

local function answer(fence, attempt, end_at_once)
  return 'begun ' .. fence .. ' ' .. int(attempt) .. ' ' .. (entry.last_done or '') .. (end_at_once and ' 1' or ' 0')
end

local function begin_window()
  window.attempts, window.revision = window.attempts + 1, window.revision + 1
  window.fence, window.owner, window.retry = fence, OWNER, RETRY
  window.state, window.message, window.publishes = 'plain', 'none', 0
  set_running(int(fence))
  write_window(window, NOW + LEASE + MARGIN, 'fence', int(fence))
end

-- An ordered window's message has a task id of its own. One with the schedule's task id is from before the order.
local before_the_order = BY_SCHEDULE and window and window.backfill == 1

-- Most windows begin here. Each run of a script makes its functions anew, so what only the other cases need is included
-- below.
local is_free = window and not kind and window.state == 'plain' and window.owner ~= OWNER and RETRY >= window.retry
if is_free and not (before_the_order or ended_by_rule(window) or wants_begin()) then
  redis.call('DEL', RUN) -- needs no memory, for a full server
  begin_window()
  return answer(int(fence), window.attempts)
end

-- include: ends, newest, wait
-- hooks: before_begin, lost_turn, on_begin, on_begin_alone

local function refuse(...)
  if entry.cursor then
    touch_entry()
    redis.call('HINCRBY', ENTRY, 'refused', 1)
    -- By window, beside the history. Display only: pcall, since a wrong-typed key here must not block begin.
    if HISTORY_SIZE > 0 and type(redis.pcall('HINCRBY', REFUSED, START, 1)) == 'number' then
      keep_newest(REFUSED, HISTORY_SIZE)
    end
  end
  return {...}
end

if kind == 'done' and owner == OWNER and BY_RULE[detail] then
  return {'closed', detail} -- the reply to the begin that closed it was lost
end
if kind == 'done' or before_the_order then
  return refuse('closed', '')
end
-- This owner has begun before, and its run key has expired since: nobody else began.
local began = window and not kind and window.owner == OWNER and window.state == 'plain' and not lost_turn()
if began or kind == 'run' and owner == OWNER then
  fence = int(began and window.fence or detail)
  redis.call('DEL', RUN) -- frees memory first: see touch_entry
  set_running(fence) -- so that the lease runs anew, and WAIT has a write to wait for
  if not window then
    return answer(fence, on_begin_alone(true) or 1)
  end
  set_deadline(NOW + LEASE + MARGIN)
  return answer(fence, window.attempts, on_begin(window))
end
if kind == 'run' and not (window or TRACKED and is_behind_cursor()) then
  return {'busy', 'runs alone'}
end
if kind == 'run' then
  return refuse('busy', 'running')
end
if kind == 'wait' and detail ~= RETRY then
  return refuse('busy', detail == NO_RETRY and 'waiting to run again' or 'waiting for retry ' .. int(detail))
end
if not window and TRACKED and is_behind_cursor() then
  return refuse('closed', '')
end

if not window then
  if before_begin() then
    return {'busy', 'runs alone'} -- nobody would publish it again
  end
  -- The run key alone decides, and is free. The message is of an untracked entry, of a key, or of a time that the store
  -- forgot.
  fence = int(fence)
  redis.call('HSET', ENTRY, 'fence', fence)
  local attempt = on_begin_alone(false)
  if not attempt then
    keep_entry()
  end
  set_running(fence)
  return answer(fence, attempt or 1)
end

if window.state == 'again' then
  return refuse('busy', 'waiting to run again')
end
if RETRY < window.retry then
  return refuse('busy', 'handed over to retry ' .. int(window.retry))
end
local outcome = ended_by_rule(window)
local verdict = outcome and {outcome = outcome} or before_begin(window)
if verdict and verdict.outcome then
  window.failure = verdict.why
  close_window(window, verdict.outcome, OWNER)
  return {'closed', verdict.outcome, verdict.why}
end
redis.call('DEL', RUN) -- needs no memory, for a full server; a retry that came isn't waited for any more
if verdict then
  touch_entry()
  local skipped = skip_others(verdict.over, OWNER)
  start_waiting(window, verdict)
  return {'waits', verdict.first, unpack(skipped)}
end
begin_window()
return answer(int(fence), window.attempts, on_begin(window))
