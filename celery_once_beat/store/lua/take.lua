-- take: a beat takes an overdue window to publish it again. The deadline that it moves is the mutex between beats. Sent
-- again by the same beat, it answers as it did the first time.
--
-- returns {'taken', revision, retry, attempts, expires, publishes, ordered}   publish it, with that retry number; ordered
--                                 is when a person ordered it, server ms, 0 where nobody did
--         {'closed', outcome}     a rule ended it: abandoned, dropped, expired or missed
--         {'no', reason}          not overdue, busy (it runs, or waits for its retry), closed already, or this beat's definition isn't in force
--         {'no', 'waits'}         it waits for its turn; a later script makes it overdue
--         {'no', 'unconsumed', queue, fence}   its message is in that queue, which no worker that knows windows consumes:
--                                 another copy would only lengthen it. It is overdue again after an eighth of its age,
--                                 and within ten minutes. fence: the entry's, which changes when one of its windows begins
--
-- CONSUMED are the queues that workers consume, by their reports, each between blanks; '' where the beat can't tell.

-- include: end_rules, ends, entry, run, wait, window
-- hooks: before_take

local kind, owner, detail = run_state()
local window = read_window()
if not window then
  if kind == 'done' and owner == BEAT then
    return {'closed', detail} -- the reply to this beat's take was lost
  end
  return {'no', 'closed'}
end
if entry.fingerprint ~= FINGERPRINT then
  return {'no', 'superseded'}
end
local function answer()
  return {'taken', window.revision, window.retry, window.attempts, window.expires, window.publishes,
    window.backfill == 1 and window.claimed or '0'}
end
if window.deadline > NOW then
  if window.message == 'taken' and window.beat == BEAT and not kind then
    touch_entry()
    return answer() -- the reply to this beat's take was lost
  end
  return {'no', 'not overdue'}
end
touch_entry()
if kind then
  set_deadline(NOW + redis.call('PTTL', RUN) + MARGIN)
  return {'no', 'busy'}
end
local outcome = ended_by_rule(window)
if outcome then
  close_window(window, outcome, BEAT)
  return {'closed', outcome}
end
-- No copy where it is certain that nobody consumes the queue of its message: that queue is known, the beat can tell, and no
-- later window of the entry is done. If one is, the queue is consumed after all, by dead letters or a shovel.
local queue = string.match(window.queue, '^[^@]*')
local queue_known = window.message == 'sent' and queue ~= '-'
local beat_can_tell = CONSUMED ~= ''
local later_one_done = START <= (entry.last_done or '')
if queue_known and beat_can_tell and not later_one_done
  and not string.find(CONSUMED, ' ' .. queue .. ' ', 1, true) then
  set_deadline(NOW + math.min(math.max((NOW - window.claimed) / 8, MARGIN), LONGEST_WAIT)) -- an eighth of its age
  return {'no', 'unconsumed', queue, int(entry.fence)}
end
local verdict = before_take(window)
if verdict then
  start_waiting(window, verdict)
  return {'no', 'waits'}
end
window.revision, window.message, window.beat = window.revision + 1, 'taken', BEAT
window.publishes = window.publishes + 1
if window.state == 'again' then
  window.state = 'again_due'
end
write_window(window, NOW + CLAIM_LEASE)
keep(OPEN)
return answer()
