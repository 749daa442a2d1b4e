-- tell: a beat takes a notice that is due, and says it; see notices.lua. The deadline that it moves is the mutex between
-- beats: unless the beat says in LENGTH ms that it was said (told), any beat says it again. Sent again by the same beat, it
-- answers the same.
--
-- KNOWN: the beat's schedule has the entry and, of an end, says which task is sent. If not, the notice is for beats whose
-- schedule does.
--
-- returns {'tell', turn, account, run, deadline, ended, failure, words, trying, waits}   say it, then send told with that
--                        turn. Texts, '' where there is nothing: the window's account, the value of its run key and when it
--                        is overdue, server ms, while it is open; how it ended, also if it was ordered to run again since,
--                        but for a late one; what its last failure said; who paused the entry and why, JSON; whether
--                        windows of the entry are published that nobody begins; for which window it waits, or of which
--                        limit for a slot
--         {'no'}         it isn't due, another beat says it, or there is nothing to say any more
--         {'forgotten'}  no beat has had the entry for an hour, or its ends aren't to be told any more: nobody says it

-- include: ends, entry, line, notices, window

local FORGOTTEN_AFTER = 3600000

entry = read_entry()
settle()
local notice, teller = MEMBER .. '!' .. KIND, 'n:' .. START .. '!' .. KIND
local at = redis.call('ZSCORE', OPEN, notice)
if not at then
  return {'no'}
end
at = at - FIRST_ALERT
local beat, turn, first = string.match(redis.call('HGET', ENTRY, teller) or '', '^(%S+) (%d+) (%d+)$')
local mine = at > NOW
if mine and beat ~= BEAT then
  return {'no'}
end
if not KNOWN then
  local wanted = KIND ~= 'ended' or entry.tells and select(3, read_tells())
  if wanted and entry.cursor and entry.fingerprint ~= '-' and NOW - at < FORGOTTEN_AFTER then
    return {'no'}
  end
  redis.call('ZREM', OPEN, notice)
  redis.call('HDEL', ENTRY, teller, 'e:' .. START)
  return {'forgotten'}
end

local open = is_open()
local ended = redis.call('HGET', ENTRY, 'e:' .. START)
if KIND == 'late' and open then
  ended = nil -- it was ordered to run again since
end
local words = entry.paused == '1' and (redis.call('HGET', ENTRY, 'paused_words') or '{}')
local nothing = KIND == 'ended' and not ended or KIND == 'paused' and not words
  or KIND == 'late' and not open and not ended -- it is done, or how it ended is lost
if nothing then
  redis.call('ZREM', OPEN, notice)
  redis.call('HDEL', ENTRY, teller)
  return {'no'}
end
local waits = ''
if open and KIND == 'late' then
  local window = read_window() -- raises where it can't be read
  if window.state == 'waits_turn' then
    waits = waits_for(window) or ''
  elseif window.state == 'waits_slot' then
    waits = redis.call('HGET', ENTRY, 'limit') or ''
  end
end
local failure = FAILURES[1] and redis.pcall('HGET', FAILURES[1], START)
touch_entry()
if not mine then
  turn = int(redis.call('HINCRBY', ENTRY, 'tellings', 1))
  redis.call('HSET', ENTRY, teller, BEAT .. ' ' .. turn .. ' ' .. (first or turn))
  redis.call('ZADD', OPEN, int(FIRST_ALERT + NOW + LENGTH), notice)
  keep_entry()
end
return {
  'tell', turn, open and (entry.account or '') or '', open and redis.call('GET', RUN) or '',
  open and redis.call('ZSCORE', OPEN, MEMBER) or '', ended or '', type(failure) == 'string' and failure or '', words or '',
  entry.trying and '1' or '', waits,
}
