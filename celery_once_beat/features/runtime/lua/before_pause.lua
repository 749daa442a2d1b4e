-- Of a definition that was set at run time a pause is a change, also where no beat has loaded the entry yet.

-- include: definition
-- keys: def, changes, defs
-- takes: name, request, from_now:flag

local function runtime_before_pause()
  local before = read_definition()
  if not before or before.deleted then
    return nil
  end
  before.change = before.paused ~= PAUSED and next_change(before)
  return before
end
