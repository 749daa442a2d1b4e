-- consume: a worker that knows windows says that it lives, and which queues of which broker it consumes.
--
-- WORKERS has '<worker> <broker> <queue>', each with the server ms of when that was said last. Who lives says it every few
-- seconds; for people it is kept for a day.
--
-- returns {'said'}

-- include: now, values

redis.call('ZREMRANGEBYSCORE', WORKERS, '-inf', NOW - DAY) -- first what needs no memory
redis.call('ZREMRANGEBYSCORE', WORKERS, '(' .. int(NOW), '+inf') -- the server's clock went back
for queue in string.gmatch(QUEUES, '%S+') do
  redis.call('ZADD', WORKERS, NOW, WORKER .. ' ' .. BROKER .. ' ' .. queue)
end
redis.call('PEXPIRE', WORKERS, DAY)
return {'said'}
