-- pause, resume: the entry's windows aren't claimed while it is paused; what is open goes on.
--
-- returns {'done'}      it is as asked, now or before
--         {'unknown'}   there is no such entry

if not read_fields()[2] then
  return {'unknown'}
end
redis.call('HDEL', ENTRY, 'paused') -- first what needs no memory: a full server then allows the next write
if PAUSED then
  redis.call('HSET', ENTRY, 'paused', '1')
end
return {'done'}
