-- include: entry

-- The window is a child's.
local function keyed_wants_close()
  return entry.fingerprint == CHILD
end
