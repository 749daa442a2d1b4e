-- include: one_by_one
-- takes: no_slot

local function admission_wants_begin()
  return NO_SLOT ~= '' or one_by_one
end
