-- Which workers begin windows, for people: WORKERS has their names, each with the server ms of a begin of its, in one shard or
-- another. A worker's process says so every few seconds, with a begin that it sends anyway.
--
-- Display only: pcall, since a foreign key in its place must not block begin.

-- include: now, values

local function mark_worker()
  local key = WORKERS[1]
  if redis.pcall('ZADD', key, NOW, string.match(OWNER, '^[^:]*')) == 1 then
    redis.pcall('ZREMRANGEBYSCORE', key, '-inf', NOW - DAY)
  end
  redis.call('PEXPIRE', key, DAY)
end
