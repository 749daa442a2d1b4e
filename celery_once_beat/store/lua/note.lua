-- note: somebody orders something. The log of orders, newest first, is for people; it keeps the last MOST for LASTS. A record
-- is the server's time, ms, the id of the call, and what was ordered, JSON; blanks between them.
--
-- returns {'noted'}   now or when this call was sent before

local MOST = 200
local LASTS = 30 * DAY

local NOW = server_time()
for _, record in ipairs(redis.call('LRANGE', ORDERS, 0, -1)) do
  if string.match(record, '^%d+ (%S+) ') == CALL then
    return {'noted'}
  end
end
redis.call('LTRIM', ORDERS, 0, MOST - 2)
redis.call('LPUSH', ORDERS, int(NOW) .. ' ' .. CALL .. ' ' .. WORDS)
redis.call('PEXPIRE', ORDERS, LASTS)
return {'noted'}
