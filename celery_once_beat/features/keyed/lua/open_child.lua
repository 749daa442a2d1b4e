-- open_child: somebody opens the window of a child, which beats recover as an entry's. Its hash has no cursor: the open set and
-- the run key decide. MESSAGE, from which a beat can publish it, is kept as the field m:<start> until the window has ended.
-- OPTIONS are as in load. It is overdue in OVERDUE_IN ms, unless it is confirmed before.
--
-- returns {'claimed'}   publish it, then confirm with revision 1. The same where the reply was lost
--         {'taken'}     it is open, so beats see to it, or has ended

-- include: entry, run, window

local window = read_window()
if run_state() or window and (window.beat ~= CLAIMANT or window.revision ~= 1) then
  return {'taken'}
end
if window then
  touch_entry()
  return {'claimed'}
end
local fields = {'v', VERSION, 'fingerprint', CHILD, 'm:' .. START, MESSAGE}
for option, value in string.gmatch(OPTIONS, '(%S+) (%S+)') do
  fields[#fields + 1], fields[#fields + 2] = option, value
end
write_window(new_window(CLAIMANT, EXPIRES and NOW + EXPIRES), NOW + OVERDUE_IN, unpack(fields))
return {'claimed'}
