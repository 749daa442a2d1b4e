-- take: a beat takes an overdue window to publish it again. The deadline that it moves is the mutex between beats. Sent
-- again by the same beat, it answers as it did the first time.
--
-- returns {'taken', turn, retry, attempts, expires, publishes, ordered}   publish it, with that retry number; ordered
--                                 says when a person ordered it, server ms, 0 where nobody did
--         {'closed', outcome}     a limit was reached: abandoned, dropped, expired or missed
--         {'no', reason}          not overdue, held, closed already, or this beat's definition isn't in force
--         {'no', 'waits'}         it waits for its turn; a later script makes it overdue
--         {'no', 'put off'}       it is overdue later: others of its entry are tried before it; see unconsumed.lua

-- include: end_rules, ends, entry, unconsumed, wait, window
-- hooks: before_take

entry = read_entry()
local kind, owner, number = settle()
local deadline = redis.call('ZSCORE', OPEN, MEMBER)
if not deadline then
  if kind == 'done' and owner == BEAT then
    return {'closed', number} -- the reply to this beat's take was lost
  end
  return {'no', 'closed'}
end
if entry.fingerprint ~= FINGERPRINT then
  return {'no', 'superseded'}
end
local window = read_window()
local function answer()
  return {'taken', window.turn, window.retry, window.attempts, window.expires, window.publishes,
    window.backfill == 1 and window.claimed or '0'}
end
if tonumber(deadline) > NOW then
  if window.taken == 1 and window.beat == BEAT and not kind then
    touch_entry()
    return answer() -- the reply to this beat's take was lost
  end
  return {'no', 'not overdue'}
end
-- For a window that was published and never began: returns true to publish it again now, else false and its new
-- deadline. Windows that are put off become overdue in order, at most twenty a second.
local function try_again()
  local start, more, last = read_trying()
  -- pcall: an account that can't be read is its own window's trouble.
  local readable, tried = pcall(another, start)
  if not readable or not tried or tried.fence > 0 then
    write_trying(START, more or 0, last or 0)
    return true
  end
  if more > 0 then
    write_trying(start, more - 1, last)
    return true
  end
  local later = math.max(overdue_again(window), math.min(last, NOW + DAY) + 50)
  write_trying(start, 0, later)
  return false, later
end

touch_entry()
if kind then
  set_deadline(NOW + redis.call('PTTL', RUN) + MARGIN)
  return {'no', 'held'}
end
local outcome = ended_by_rule(window)
if outcome then
  close_window(window, outcome, BEAT)
  return {'closed', outcome}
end
local verdict = before_take(window)
if verdict then
  start_waiting(window, verdict)
  return {'no', 'waits'}
end
if is_new(window) and window.taken == SENT then
  local now, later = try_again()
  if not now then
    set_deadline(later)
    return {'no', 'put off'}
  end
end
window.turn, window.taken, window.beat = window.turn + 1, 1, BEAT
window.publishes = window.publishes + 1
if window.state == 'again' then
  window.state = 'again_due'
end
write_window(window, NOW + CLAIM_LEASE)
keep(OPEN)
return answer()
