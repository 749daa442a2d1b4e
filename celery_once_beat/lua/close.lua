-- close: a worker's main process says that a message was discarded before its task could see it.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] owner: the delivery   ARGV[7] outcome: expired or revoked   ARGV[8] retry number of the message
--
-- returns {'closed', outcome}   recorded, now or when this was sent before
--         {'unchanged'}   it runs, waits for another retry, or hasn't expired by the server's clock; an execution of
--                         it died, which is for recovery; or it is closed already
--         {'newer', version}

local kind, owner = settle()
if not is_open() then
  return kind == 'done' and owner == ARGV[6] and {'closed', ARGV[7]} or {'unchanged'}
end
local window = read_window()
if ARGV[7] == 'expired' and NOW < window.expires then
  -- By a worker's clock that is ahead. Its copy is gone; the window becomes overdue.
  return {'unchanged'}
end
-- An execution that died is for recovery; but one that was revoked would be discarded each time that it comes.
local idle = not kind and (window.fence == 0 or window.released == TO_RETRY or ARGV[7] == 'revoked')
if (idle or kind == 'wait') and window.retry == tonumber(ARGV[8]) then
  close_window(window, ARGV[7], ARGV[6])
  return {'closed', ARGV[7]}
end
return {'unchanged'}
