-- renew_slot: an execution keeps its slot of a limit, for LENGTH ms from now. With TAKES_OVER it has begun the window, and has
-- its slot, whoever acquired that.
--
-- returns {'kept'}   {'lost'} (its lease was over, and others needed the room; another execution has it; or it released it)

-- include: limit, now

local slot, owner = slot_of(WINDOW)
if not slot or owner ~= OWNER and not TAKES_OVER then
  return {'lost'}
end
redis.call('PEXPIRE', SLOTS, DAY) -- needs no memory, for a full server
redis.call('ZADD', SLOTS, NOW + LENGTH, OWNER .. ' ' .. WINDOW)
if owner ~= OWNER then
  redis.call('ZREM', SLOTS, slot) -- not before: without a member the key would be gone, and come back without its expiry
end
return {'kept'}
