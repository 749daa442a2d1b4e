-- NOW_ONLY: the verb is for the present window of the key. If the server's time (ms) lies in another one, that is the reply.

-- include: now, values
-- takes: now_only:flag, ends_at:time

local function keyed_before_all()
  local elsewhen = NOW < STARTS_AT or ENDS_AT and NOW >= ENDS_AT
  return NOW_ONLY and elsewhen and {'elsewhen', int(NOW)} or nil
end
