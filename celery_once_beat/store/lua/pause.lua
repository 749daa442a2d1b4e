-- pause, resume: the entry's windows aren't claimed while it is paused; what is open goes on. Stands without the
-- prelude.
--
-- KEYS[1] entry hash   ARGV[1] 1 to pause, 0 to resume
--
-- returns {'done'}      it is as asked, now or before
--         {'unknown'}   there is no such entry
--         {'newer', version}

local fields = redis.call('HMGET', KEYS[1], 'cursor', 'v')
if not fields[1] then
  return {'unknown'}
end
local version = tonumber(string.match(fields[2] or '1', '^%d+$'))
if not version then
  return redis.error_reply('BADDATA ' .. KEYS[1] .. ' has no version')
end
if version > 1 then
  return {'newer', fields[2]}
end
if ARGV[1] == '1' then
  redis.call('HDEL', KEYS[1], 'paused') -- first what needs no memory: a server that is full lets the script go on
  redis.call('HSET', KEYS[1], 'paused', '1')
else
  redis.call('HDEL', KEYS[1], 'paused')
end
return {'done'}
