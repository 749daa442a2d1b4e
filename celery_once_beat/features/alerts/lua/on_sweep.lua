-- keys: alerts, late

-- pcall: a beat that takes alerts gets the error of a foreign key instead.
local function alerts_on_sweep(found)
  local late = redis.pcall('ZRANGEBYSCORE', LATE, '-inf', UNTIL, 'LIMIT', 0, 1)
  if late.err or late[1] or redis.pcall('XLEN', ALERTS) ~= 0 then
    found[#found + 1] = 'alerts'
  end
end
