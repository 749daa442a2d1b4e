-- note: somebody orders something. The log of orders is for people; it keeps what happened within LASTS, and of that the
-- newest MOST records. A record is the id of the request and what was ordered, JSON, with a blank between them; its score is
-- the server's time, ms, and grows. Of two records of a request the later counts: the order was refused.
--
-- returns {'noted'}   also if this request was sent before

-- include: now, values

local MOST = 10000
local LASTS = 90 * DAY

redis.call('PEXPIRE', ORDERS, LASTS) -- needs no memory, for a full server: people pause entries there, too
redis.call('ZREMRANGEBYSCORE', ORDERS, '-inf', NOW - LASTS)
redis.call('ZREMRANGEBYRANK', ORDERS, 0, -MOST)
local last = tonumber(redis.call('ZRANGE', ORDERS, -1, -1, 'WITHSCORES')[2] or 0)
redis.call('ZADD', ORDERS, last < NOW + LASTS and math.max(NOW, last + 1) or NOW, REQUEST .. ' ' .. WORDS)
redis.call('PEXPIRE', ORDERS, LASTS)
return {'noted'}
