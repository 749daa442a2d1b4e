-- Alerts of windows. ALERTS is the shard's stream: the script that decides something adds an event. A beat takes
-- events (alerts), sends each, and confirms it (alerted). An event that isn't confirmed in time is taken by another
-- beat. All beats share one consumer, since a consumer per beat would remain in the group.
--
-- An event has four fields, in this order:
--
--   window   '<entry>@<start>'
--   kind     late: it isn't done a deadline after its start   ended: it has an outcome that isn't done
--            paused: its failure has paused the entry
--   at       when that was, server ms
--   what     of an end '<outcome> <server ms> <the failure's text>'; of a late one that is open, when it becomes
--            overdue, server ms; of a pause its note
--
-- LATE: windows that are not yet done or late, scored by the time at which they become late, server ms. ENDS: how
-- those in LATE ended that aren't done.
--
-- pcall: a foreign key in their place must not block a window.
--
-- A stream has about so many events: without a reader the oldest are dropped.

-- include: now, values
-- keys: alerts, late, ends

local MOST_ALERTS = 10000
-- Milliseconds after its last event.
local ALERTS_TTL = 30 * DAY

local function add_alert(kind, member, what)
  redis.pcall('XADD', ALERTS, 'MAXLEN', '~', MOST_ALERTS, '*', 'window', member, 'kind', kind, 'at', int(NOW), 'what', what)
  redis.call('PEXPIRE', ALERTS, ALERTS_TTL)
end
