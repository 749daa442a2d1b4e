-- sweep: a beat reports in one shard that it lives, and finds what is overdue there by UNTIL: at most MOST windows behind the
-- first SKIP.
--
-- BEATS holds the time of each beat's last sweep of this shard. A beat that hasn't swept for BEAT_TTL is gone; the
-- scripts go by that. If no beat swept for a while (the node was away, or the clock was set), at most MOST_SILENT of
-- that time counts, and all times are shifted by the rest. So no beat counts as gone just because the node was away.
-- A beat that is left alone sees after a few sweeps that the others are gone.
--
-- returns {new, windows, feature...}   new 1: the beat wasn't known. It is new, was away for too long, or the store lost its
--                                data. feature: there is something to see to in this shard

-- include: now, values
-- hooks: on_sweep

local MOST_SILENT = 5000 -- ms; beats sweep at least as often

redis.call('ZREM', BEATS, '') -- first what needs no memory: a full server takes no beat for gone
local times = redis.call('ZRANGEBYSCORE', BEATS, '-inf', int(TOO_LARGE), 'WITHSCORES')
local since = NOW - (times[#times] or NOW)
local shift = since - math.min(math.max(since, 0), MOST_SILENT)
for place = 1, #times, 2 do
  local beat, at = times[place], times[place + 1] + shift
  if at <= NOW - BEAT_TTL then
    redis.call('ZREM', BEATS, beat)
  elseif shift ~= 0 then
    redis.call('ZADD', BEATS, at, beat)
  end
end
local new = redis.call('ZADD', BEATS, NOW, BEAT)
redis.call('PEXPIRE', BEATS, 30 * DAY)
local found = {new, redis.call('ZRANGEBYSCORE', OPEN, '-inf', UNTIL, 'LIMIT', SKIP, MOST)}
on_sweep(found)
return found
