-- Whether windows of the entry run one by one. OVERLAP is the task's own, which counts unless the entry has one.

-- include: entry
-- takes: overlap
-- fields: overlap

local function overlap()
  local of_entry = entry.overlap or '-'
  return of_entry == '-' and OVERLAP or of_entry
end

local function one_by_one()
  return overlap() ~= 'allow'
end
