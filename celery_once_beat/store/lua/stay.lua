-- stay: an execution keeps its place of a limit, for LENGTH ms from now. With TAKES_OVER it has begun the window, and has its
-- place, whoever took that.
--
-- returns {'kept'}   {'lost'} (its lease was over, and others needed the room; another execution has it; or it gave it back)

local NOW = server_time()
local place, owner = place_of(WINDOW)
if not place or owner ~= OWNER and not TAKES_OVER then
  return {'lost'}
end
keep_limit() -- needs no memory, for a full server
redis.call('ZADD', PLACES, NOW + LENGTH, OWNER .. ' ' .. WINDOW)
if owner ~= OWNER then
  redis.call('ZREM', PLACES, place) -- not before: without a member the key would be gone, and come back without its expiry
end
return {'kept'}
