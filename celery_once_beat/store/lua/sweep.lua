-- sweep: a beat says in one shard that it lives, and finds what is overdue there by UNTIL: at most MOST windows behind the
-- first SKIP, and as many notices behind SKIP_NOTICES.
--
-- BEATS has when each beat swept the shard last. Who didn't for BEAT_TTL is gone: scripts count the others as alive.
-- A time in which nobody came says nothing of any beat: all were away, or the node was. Of it at most MOST_SILENT counts, by
-- the marks' moving along. So once a node is back each beat has its time to say that it lives, and a beat that is left alone
-- sees after a few sweeps that the others are gone. Where the server's clock went back, the marks go back with it.
--
-- returns {1 or 0, windows, notices}   1: the beat wasn't known. It is new, was away for too long, or the store lost its data

local MOST_SILENT = 5000 -- ms; no beat's recovery_interval is longer

local NOW = server_time()
redis.call('PEXPIRE', BEATS, 30 * DAY) -- first what needs no memory: a full server takes no beat for gone
local last = redis.call('ZREVRANGEBYSCORE', BEATS, int(TOO_LARGE), '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or NOW
local shift = NOW - last - math.min(math.max(NOW - last, 0), MOST_SILENT)
if shift ~= 0 then
  for _, beat in ipairs(redis.call('ZRANGE', BEATS, 0, -1)) do
    redis.call('ZINCRBY', BEATS, shift, beat)
  end
end
redis.call('ZREMRANGEBYSCORE', BEATS, '-inf', NOW - BEAT_TTL)
local new = redis.call('ZADD', BEATS, NOW, BEAT)
redis.call('PEXPIRE', BEATS, 30 * DAY)
local function due(from, by, skip)
  return redis.call('ZRANGEBYSCORE', OPEN, from, by, 'LIMIT', skip, MOST)
end
return {new, due('-inf', UNTIL, SKIP), due(FIRST_ALERT, FIRST_ALERT + UNTIL, SKIP_NOTICES)}
