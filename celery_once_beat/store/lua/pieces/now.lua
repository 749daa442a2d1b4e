-- The server's time, ms; TIME is as the server gives it: seconds, and microseconds of the second.

local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
