-- postpone: an overdue window that the asking beat can't take is put off, or ended, so that it doesn't hide what comes
-- behind it. What another living beat has loaded is for that one to take (a rolling deploy, two apps that share a prefix).
--
-- WHY is 'unknown': the beat's schedule has no such entry (any more); or 'untracked': the beat doesn't track it (any more).
-- Either is noted in the entry: that beat isn't waited for.
--
-- returns {'postponed'}   nobody has such an entry; a worker may still get to its message
--         {'forgotten'}   nothing is known of its entry any more: it is open no longer
--         {'closed', 'dropped'}   the entry is there, and no worker would close the window
--         {'no'}          it isn't overdue, or is another's

-- include: ends, entry, loaders, run, window
-- hooks: on_release

local kind, owner, outcome = run_state()
local window = read_window()
if not window and kind == 'done' and owner == BEAT and outcome == 'dropped' then
  return {'closed', 'dropped'} -- the reply to that was lost
end
if not window or window.deadline > NOW then
  return {'no'}
end
if not entry.cursor then
  redis.call('ZREM', OPEN, MEMBER)
  return {'forgotten'}
end
local is_known = WHY == 'untracked'
local loaders, _, mine = read_loaders(redis.call('HGET', ENTRY, 'loaders'))
-- A beat that isn't listed, or not yet, may track it too: then it takes the window at its next look.
local others = is_known and window.deadline > NOW - BEAT_TTL
for _, loader in ipairs(loaders) do
  others = others or not is_known or loader.untracked == ''
end
touch_entry() -- first what needs no memory
if mine and not (is_known and mine.untracked ~= '') then -- it is written once: every look asks for every window
  if is_known then
    mine.untracked = 'u'
    loaders[#loaders + 1] = mine
  end
  redis.call('HSET', ENTRY, 'loaders', listed(loaders))
end
if others then
  return {'no'}
end
if kind then
  set_deadline(NOW + redis.call('PTTL', RUN) + MARGIN)
  return {'no'}
end
if is_known then
  close_window(window, 'dropped', BEAT)
  return {'closed', 'dropped'}
end
set_deadline(NOW + DELAY)
on_release(true)
return {'postponed'}
