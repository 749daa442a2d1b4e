-- note: somebody orders something. The log of orders is for people; it keeps the last MOST for LASTS. A record is the id of
-- the call and what was ordered, JSON, with a blank between them; its score is the server's time, ms, and grows.
--
-- returns {'noted'}   also if this call was sent before

local MOST = 200
local LASTS = 30 * DAY

local NOW = server_time()
local known = redis.call('ZRANGEBYSCORE', ORDERS, '-inf', '+inf', 'WITHSCORES')
redis.call('PEXPIRE', ORDERS, LASTS) -- needs no memory, for a full server: people pause entries there, too
for place = 1, #known - 2 * (MOST - 1), 2 do
  redis.call('ZREM', ORDERS, known[place])
end
local last = tonumber(known[#known] or 0)
redis.call('ZADD', ORDERS, int(math.max(NOW, last + 1)), CALL .. ' ' .. WORDS)
redis.call('PEXPIRE', ORDERS, LASTS)
return {'noted'}
