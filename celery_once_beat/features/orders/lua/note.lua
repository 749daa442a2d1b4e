-- note: somebody orders something. The log of orders is for people; it keeps what happened within LASTS, and of that the
-- newest MOST bytes. A record is the id of the request and what was ordered, JSON, with a blank between them; its score is
-- the server's time, ms, and grows.
--
-- A record of the same request replaces the earlier one: the order was refused.
--
-- returns {'noted'}   also if this request was sent before

-- include: now, values

local MOST = 2000000
local LASTS = 90 * DAY

local known = redis.call('ZRANGEBYSCORE', ORDERS, '-inf', '+inf', 'WITHSCORES')
redis.call('PEXPIRE', ORDERS, LASTS) -- needs no memory, for a full server: people pause entries there, too
local bytes = #WORDS
for place = #known - 1, 1, -2 do
  bytes = bytes + #known[place]
  local repeated = string.sub(known[place], 1, #REQUEST + 1) == REQUEST .. ' '
  if bytes > MOST or tonumber(known[place + 1]) < NOW - LASTS or repeated then
    redis.call('ZREM', ORDERS, known[place])
  end
end
local last = tonumber(known[#known] or 0)
redis.call('ZADD', ORDERS, int(last < NOW + LASTS and math.max(NOW, last + 1) or NOW), REQUEST .. ' ' .. WORDS)
redis.call('PEXPIRE', ORDERS, LASTS)
return {'noted'}
