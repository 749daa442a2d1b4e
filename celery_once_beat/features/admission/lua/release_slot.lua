-- release_slot: an execution gives its slot of a limit back. OWNER is it, or its delivery. FORGET: its window waits for a slot
-- no longer. Sent again, it answers the same.
--
-- returns {'released'}

-- include: limit

local slot, owner = slot_of(WINDOW)
if slot and (owner == OWNER or string.sub(owner, 1, #OWNER + 1) == OWNER .. ':') then
  redis.call('ZREM', SLOTS, slot)
end
if FORGET then
  redis.call('ZREM', WAITING, WINDOW)
end
return {'released'}
