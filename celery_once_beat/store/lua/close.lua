-- close: a worker's main process says that a message was discarded before its task could see it; or a beat, that a
-- window which never began has a result: somebody executed it who knows no windows.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] owner: the delivery, or the beat   ARGV[7] outcome: expired or revoked; of a result done, failed or revoked;
-- 'unknown' if the worker doesn't know its task
-- ARGV[8] retry number of the message   ARGV[9] with 'unknown' publish_timeout ms, of a result 1; else absent
--
-- returns {'closed', outcome}   recorded, now or when this was sent before
--         {'unchanged'}   it runs, waits for another retry, or hasn't expired by the server's clock; an execution of
--                         it died, which is for recovery; or it is closed already
--         {'sooner'}      of one that is unknown: it stays open, and asks again soon, in doubling steps up to
--                         publish_timeout; the next copy may meet a worker that knows its task. Of an entry's windows
--                         that never began one is published again at a time; see take
--         {'newer', version}

local kind, owner = settle()
if not is_open() then
  return kind == 'done' and owner == ARGV[6] and {'closed', ARGV[7]} or {'unchanged'}
end
local window = read_window()
if ARGV[7] == 'unknown' then
  -- None is out of one that runs, that died, or that is to run again later: a copy that came late was discarded.
  if kind == 'run' or window.publishes == 0 or window.retry ~= tonumber(ARGV[8]) then
    return {'unchanged'}
  end
  local soon = math.min(1000 * 2 ^ math.min(window.publishes - 1, 30), tonumber(ARGV[9]))
  if kind == 'wait' then
    soon = redis.call('PTTL', RUN) + MARGIN
  end
  if NOW + soon < tonumber(redis.call('ZSCORE', OPEN, MEMBER)) then
    -- The beat that published it may confirm only now: that would put it off.
    window.turn, window.taken = window.turn + 1, SENT
    write_window(window, NOW + soon)
  end
  return {'sooner'}
end
if ARGV[7] == 'expired' and NOW < window.expires then
  -- By a worker's clock that is ahead. Its copy is gone; the window becomes overdue.
  return {'unchanged'}
end
if ARGV[9] and (window.fence > 0 or window.backfill == 1) then
  return {'unchanged'} -- it is known to workers, or was opened by order since
end
-- An execution that died is for recovery; but one that was revoked would be discarded each time that it comes.
local idle = not kind and (window.fence == 0 or window.released == TO_RETRY or ARGV[7] == 'revoked')
if (idle or kind == 'wait') and window.retry == tonumber(ARGV[8]) then
  close_window(window, ARGV[7], ARGV[6])
  return {'closed', ARGV[7]}
end
return {'unchanged'}
