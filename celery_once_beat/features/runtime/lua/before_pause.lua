-- Of a definition that was set at run time a pause is a change, also where no beat has loaded the entry yet.

-- include: definition
-- keys: def, changes, defs
-- takes: name, request, from_now:flag

local function runtime_before_pause()
  before.change = before.there and before.paused ~= PAUSED and next_change()
  return before.there
end
