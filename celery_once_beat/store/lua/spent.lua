-- spent: a one-off has had its window. Who loads it later has to know whether it was disabled since, and enabled again.
-- Stands without the prelude.
--
-- KEYS[1] entry hash   ARGV[1] the cursor from which its definition counts, as the beat knows it
-- ARGV[2] when it was edited last, as the beat knows it, an instant
-- ARGV[3] 1: it is being disabled, and this is kept; 0: the beat asks
-- ARGV[4] from where it counts if it was enabled again, an instant: the beat's now
--
-- returns {'spent'}           not that it was enabled again, as far as beats know
--         {'again', instant}  it was: an edit is later than the one that was disabled. It counts from then, the same for
--                             all who ask; nothing is kept
--         {'moved'}           it counts from another cursor by now: load it again
--         {'unknown'}         there is no such entry
--         {'newer', version}

local fields = redis.call('HMGET', KEYS[1], 'cursor', 'v', 'since', 'spent')
if not fields[1] then
  return {'unknown'}
end
local version = tonumber(string.match(fields[2] or '1', '^%d+$'))
if not version then
  return redis.error_reply('BADDATA ' .. KEYS[1] .. ' has no version')
end
if version > 1 then
  return {'newer', fields[2]}
end
if fields[3] ~= ARGV[1] then
  return {'moved'}
end
local since, edited, again
if fields[4] then
  local instant = '(%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ)'
  since, edited, again = string.match(fields[4], '^' .. instant .. ' ' .. instant .. ' ?(%S*)$')
  if not since or again ~= '' and not string.match(again, '^' .. instant .. '$') then
    return redis.error_reply('BADDATA ' .. KEYS[1] .. ' field spent: found no two or three instants')
  end
end
if since == ARGV[1] then -- else it is of an earlier window
  if again == '' and edited < ARGV[2] then
    again = ARGV[4]
    redis.call('HSET', KEYS[1], 'spent', since .. ' ' .. edited .. ' ' .. again)
  end
  if again ~= '' then
    return {'again', again}
  end
end
if ARGV[3] == '1' then
  redis.call('HSET', KEYS[1], 'spent', ARGV[1] .. ' ' .. ARGV[2])
end
return {'spent'}
