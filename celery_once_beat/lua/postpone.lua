-- postpone: an overdue window that the asking beat can't take, since its schedule has no such entry, or no worker
-- would close it. It is put off, or ended, so that it doesn't hide what comes behind it.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)   ARGV[6] ms to put it off   ARGV[7] the beat
-- ARGV[8] 'unknown': its schedule has no such entry (any more); that is noted in the entry
--         'untracked': its entry's task is no OnceTask (any more), or the beat doesn't know it
-- ARGV[9...] the other beats alive: what one of them has loaded is for that one to take (a rolling deploy, two apps
-- that share a prefix)
--
-- returns {'postponed'}   nobody has such an entry; a worker may still get to its message
--         {'forgotten'}   nothing is known of its entry any more: it is open no longer
--         {'closed', 'dropped'}   the entry is there, and no worker would close the window
--         {'no'}          it isn't overdue, or is another's
--         {'newer', version}

local kind = settle()
local deadline = redis.call('ZSCORE', OPEN, MEMBER)
if not deadline or tonumber(deadline) > NOW then
  return {'no'}
end
if not entry.cursor then
  redis.call('ZREM', OPEN, MEMBER)
  return {'forgotten'}
end
local alive = {}
for position = 9, #ARGV do
  alive[ARGV[position]] = true
end
local loaders, others, mine = {}, false, false
for beat, fingerprint, at in string.gmatch(redis.call('HGET', ENTRY, 'loaders') or '', '(%S+) (%S+) (%d+)') do
  if beat == ARGV[7] then
    mine = true
  else
    loaders[#loaders + 1] = beat .. ' ' .. fingerprint .. ' ' .. at
    others = others or alive[beat]
  end
end
if ARGV[8] == 'unknown' and mine then -- once: each look asks again for each window
  redis.call('HSET', ENTRY, 'loaders', table.concat(loaders, ' '))
end
if others then
  return {'no'}
end
touch_entry()
if kind then
  redis.call('ZADD', OPEN, int(NOW + redis.call('PTTL', RUN) + MARGIN), MEMBER)
  return {'no'}
end
if ARGV[8] == 'untracked' then
  close_window(read_window(), 'dropped', ARGV[7])
  return {'closed', 'dropped'}
end
redis.call('ZADD', OPEN, int(NOW + ARGV[6]), MEMBER)
if redis.call('HGET', ENTRY, 'running') == START then
  redis.call('HDEL', ENTRY, 'running') -- until it is taken it keeps no other from running
end
return {'postponed'}
