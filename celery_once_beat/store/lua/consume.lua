-- consume: a worker that knows windows reports that it lives, and which queues of which broker it consumes.
--
-- WORKERS has '<worker> <broker> <queue>', each with the server ms of its last report. A live worker reports every few
-- seconds; for readers it is kept for a day.
--
-- returns {'noted'}

-- include: now, values

redis.call('ZREMRANGEBYSCORE', WORKERS, '-inf', NOW - DAY) -- first what needs no memory
redis.call('ZREMRANGEBYSCORE', WORKERS, '(' .. int(NOW), '+inf') -- the server's clock went back
for queue in string.gmatch(QUEUES, '%S+') do
  redis.call('ZADD', WORKERS, NOW, WORKER .. ' ' .. BROKER .. ' ' .. queue)
end
redis.call('PEXPIRE', WORKERS, DAY)
return {'noted'}
