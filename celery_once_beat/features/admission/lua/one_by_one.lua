-- Whether windows of the entry run one by one. OVERLAP is the task's own, which counts unless the entry has one.

-- include: entry
-- takes: overlap
-- fields: overlap

local overlap = (entry.overlap or '-') == '-' and OVERLAP or entry.overlap
local one_by_one = overlap ~= 'allow'
