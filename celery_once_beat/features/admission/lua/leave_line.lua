-- leave_line: a window that was called is overdue now, so it isn't to be called again. If it has come in the meantime, this
-- changes nothing: it has a slot, or is in line for another one.
--
-- returns {'left'}

if redis.call('ZSCORE', CALLED, WINDOW) then
  redis.call('ZREM', WAITING, WINDOW)
end
return {'left'}
