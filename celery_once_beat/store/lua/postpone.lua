-- postpone: an overdue window that the asking beat can't take, since its schedule has no such entry, or no worker
-- would close it. It is put off, or ended, so that it doesn't hide what comes behind it.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)   ARGV[6] ms to put it off   ARGV[7] the beat
-- ARGV[8] 'unknown': its schedule has no such entry (any more); that is noted in the entry
--         'untracked': its entry's task is no OnceTask (any more), or the beat doesn't know it
-- ARGV[9...] who lives (loaders): what another one that lives has loaded is for that one to take (a rolling deploy, two
-- apps that share a prefix)
--
-- returns {'postponed'}   nobody has such an entry; a worker may still get to its message
--         {'forgotten'}   nothing is known of its entry any more: it is open no longer
--         {'closed', 'dropped'}   the entry is there, and no worker would close the window
--         {'no'}          it isn't overdue, or is another's
--         {'who', beat...}   whether these live has to be known (loaders)
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
local loaders, others, mine = {}, false, false
for _, loader in ipairs((read_loaders(redis.call('HGET', ENTRY, 'loaders'), 9, NOW))) do
  if loader.beat == ARGV[7] then
    mine = true
  else
    loaders[#loaders + 1] = loader
    others = others or loader.lives
  end
end
if not others and #loaders > 0 then
  return ask_who_lives(loaders)
end
if ARGV[8] == 'unknown' and mine then -- once: each look asks again for each window
  redis.call('HSET', ENTRY, 'loaders', write_loaders(loaders))
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
