-- pause, resume: the entry's windows aren't claimed while it is paused; what is open goes on.
--
-- KEYS[1] entry hash   ARGV[1] 1 to pause, 0 to resume
--
-- returns 1, or 0 where there is no such entry

if redis.call('HEXISTS', KEYS[1], 'cursor') == 0 then
  return 0
end
if ARGV[1] == '1' then
  redis.call('HSET', KEYS[1], 'paused', '1')
else
  redis.call('HDEL', KEYS[1], 'paused')
end
return 1
