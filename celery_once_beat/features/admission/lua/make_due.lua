-- make_due: a slot is free for this window, so it becomes overdue: a beat publishes it.
--
-- returns {'due'}
--         {'over'}        it owes no outcome any more
--         {'unchanged'}   it doesn't wait for a slot (yet), or its message is out

-- include: entry, window

local window = read_window()
if not window then
  return {'over'}
end
if window.state ~= 'waits_slot' or window.message ~= 'none' then
  return {'unchanged'}
end
touch_entry()
set_deadline(NOW)
return {'due'}
