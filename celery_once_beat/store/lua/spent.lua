-- spent: a one-off has had its window. Whoever loads it later has to know whether it was disabled since, and enabled again.
--
-- SINCE is the cursor from which its definition counts, and EDITED the time of its last edit, both as the beat knows them.
-- DISABLED: it is being disabled, and this is kept; else the beat only asks. FROM_NOW is the beat's now: from where the
-- one-off counts if it was enabled again.
--
-- returns {'spent'}           as far as beats know it wasn't enabled again
--         {'again', instant}  it was: an edit is later than the one that was disabled. It counts from then, the same for
--                             all who ask; nothing is kept
--         {'unknown'}         there is no such entry, or it counts from another cursor by now: load it again

-- include: fields

local fields = read_fields('since', 'spent')
if fields[3] ~= SINCE then
  return {'unknown'}
end
local since, edited, again = string.match(fields[4] or '', '^(%S+) (%S+) ?(%S*)$')
if since == SINCE then -- else it is of an earlier window, or foreign
  if again == '' and edited < EDITED then
    again = FROM_NOW
    redis.call('HSET', ENTRY, 'spent', since .. ' ' .. edited .. ' ' .. again)
  end
  if again ~= '' then
    return {'again', again}
  end
end
if DISABLED then
  redis.call('HSET', ENTRY, 'spent', SINCE .. ' ' .. EDITED)
end
return {'spent'}
