-- alerted: a beat has sent the alert ID that it took, or leaves it to others. Sent again, it changes nothing.
--
-- WHAT is 'sent'; 'left': another beat is to take it; or 'unknown': this beat's schedule has no such entry, or no
-- on_failure task. An unknown alert goes back for other beats. It is dropped if no beat has had the entry for an
-- hour, or if the entry no longer asks for alerts of ends.
--
-- returns {'alerted'}

-- include: now

local FORGOTTEN_AFTER = 3600000

local event = redis.call('XRANGE', ALERTS, ID, ID)[1]
if redis.call('XACK', ALERTS, GROUP, ID) == 0 or not event then
  return {'alerted'}
end
redis.call('XDEL', ALERTS, ID)
-- pcall: an alert is sent once even if the entry's key holds something foreign.
local fields = redis.pcall('HMGET', ENTRY, 'cursor', 'fingerprint', 'on_failure')
local kind, at = event[2][4], tonumber(event[2][6])
if WHAT == 'sent' then
  if kind == 'late' and fields[1] then
    redis.pcall('HINCRBY', ENTRY, 'late', 1) -- for people only
  end
elseif WHAT == 'left' or fields[1] and fields[2] ~= '-' and NOW - at < FORGOTTEN_AFTER
  and (kind ~= 'ended' or (fields[3] or '-') ~= '-') then
  redis.call('XADD', ALERTS, '*', unpack(event[2])) -- behind all others: what nobody can send hides none
end
return {'alerted'}
