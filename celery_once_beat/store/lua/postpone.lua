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

-- include: ends, entry, loaders, window
-- hooks: on_release

entry = read_entry()
local kind, owner, outcome = settle()
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
local untracked_by = WHY == 'untracked' and redis.call('HGET', ENTRY, 'untracked') or ''
local function is_untracked_by(beat)
  return string.find(' ' .. untracked_by .. ' ', ' ' .. beat .. ' ', 1, true)
end
local still_untracked = {}
local loaders, _, mine = read_loaders(redis.call('HGET', ENTRY, 'loaders'))
-- A beat that isn't listed, or not yet, may track it too: then it takes the window at its next look.
local others = WHY == 'untracked' and window.deadline > NOW - BEAT_TTL
for _, loader in ipairs(loaders) do
  if is_untracked_by(loader.beat) then
    still_untracked[#still_untracked + 1] = loader.beat
  else
    others = true
  end
end
touch_entry() -- first what needs no memory
-- Either is written once: every look asks for every window.
if WHY == 'unknown' and mine then
  redis.call('HSET', ENTRY, 'loaders', listed(loaders))
end
if others then
  if WHY == 'untracked' and mine and not is_untracked_by(BEAT) then
    still_untracked[#still_untracked + 1] = BEAT
    redis.call('HSET', ENTRY, 'untracked', table.concat(still_untracked, ' '))
  end
  return {'no'}
end
if kind then
  set_deadline(NOW + redis.call('PTTL', RUN) + MARGIN)
  return {'no'}
end
if WHY == 'untracked' then
  close_window(window, 'dropped', BEAT)
  return {'closed', 'dropped'}
end
set_deadline(NOW + DELAY)
on_release(true)
return {'postponed'}
