-- republish: somebody says that a window's message is lost: it is overdue now, so a beat publishes it again. If the message
-- was there all the same, a worker refuses one of the two.
--
-- returns {'confirmed'}   so it is
--         {'unchanged'}   its message isn't out: it runs, waits or has ended

-- include: entry, window

local window = read_window()
if not window or window.message ~= 'sent' then
  return {'unchanged'}
end
touch_entry()
set_deadline(NOW)
return {'confirmed'}
