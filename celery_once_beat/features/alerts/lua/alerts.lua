-- alerts: a beat takes alerts of a shard, to send them; see events.lua. First those windows become late that aren't
-- done by now. What was taken more than IDLE ms ago and isn't sent, is taken again; MOST of them, and MOST new ones.
--
-- returns {{id, fields}...}. If the reply is lost, they are taken again later.

-- include: events, now

redis.call('XLEN', ALERTS) -- before anything is written, it raises where the key holds something else
for _, member in ipairs(redis.call('ZRANGEBYSCORE', LATE, '-inf', NOW, 'LIMIT', 0, MOST)) do
  local what = redis.call('ZSCORE', OPEN, member) or redis.call('HGET', ENDS, member)
  redis.call('HDEL', ENDS, member) -- first, since it raises where the key holds something else
  redis.call('ZREM', LATE, member)
  if what then -- else it is done, or how it ended is lost
    add_alert('late', member, what)
  end
end
local found = {}
if redis.call('XLEN', ALERTS) == 0 then
  return found
end
local made = redis.pcall('XGROUP', 'CREATE', ALERTS, GROUP, 0)
if made.err and not string.find(made.err, 'BUSYGROUP') then -- which says that it is there
  return made
end
local idle = redis.call('XAUTOCLAIM', ALERTS, GROUP, 'beat', IDLE, 0, 'COUNT', MOST, 'JUSTID')[2]
for _, id in ipairs(idle) do
  local event = redis.call('XRANGE', ALERTS, id, id)[1]
  if event then
    found[#found + 1] = event
  else
    redis.call('XACK', ALERTS, GROUP, id) -- it was dropped
  end
end
local new = redis.call('XREADGROUP', 'GROUP', GROUP, 'beat', 'COUNT', MOST, 'STREAMS', ALERTS, '>')
for _, event in ipairs(new and new[1][2] or {}) do
  found[#found + 1] = event
end
return found
