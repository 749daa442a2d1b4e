-- A limit: the most windows, over all entries that name it, that may run at once. Its keys share a cluster slot of
-- their own:
--
--   SLOTS     '<owner> <window>' → the end of its lease, server ms. A window is <entry>@<start>
--   WAITING   <window> that found no slot → when it asked, server us: no two asked at once
--   CALLED    <window> that was called a moment ago and is yet to come → when it asked: if it finds no slot, it is in line where
--             it was
--   FEWEST    how many slots there are by the settings of a worker that found none free; for a minute
--
-- A slot is a lease: acquired before begin, renewed with the window's lease, released after the end. The dead lose theirs as
-- soon as anybody asks for one. A beat finds free slots and calls as many windows, those that waited longest. No slot is
-- reserved: the first to ask gets it, and a window that gets none waits again.

-- include: now, values

-- The member of SLOTS that this window has, and its owner; nil if none.
local function slot_of(window)
  for _, member in ipairs(redis.call('ZRANGE', SLOTS, 0, -1)) do
    local owner, whose = string.match(member, '^(%S+) (.*)$')
    if whose == window then
      return member, owner
    end
  end
end
