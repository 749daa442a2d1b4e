-- pause, resume: the entry's windows aren't claimed while it is paused; what is open goes on.
--
-- Of a definition that was set at run time it is a change: counted, remembered, and kept with the definition, also where no
-- beat has loaded the entry yet. The entry's own field is what claims look at.
--
-- ONLY_STILL: it was paused before, and is to be so in its definition too, unless somebody has resumed it since.
--
-- returns {'done', field, value...}   it is as asked, now or before: what there is from then on
--         {'paused'}    the same, of an entry that wasn't set at run time
--         {'unknown'}   there is no such entry

-- include: definition, entry

local cursor, before = read_fields()[2], read_definition()
local set = before and not before.deleted
if ONLY_STILL and redis.call('HGET', ENTRY, 'paused') ~= '1' then
  return {'unknown'}
end
if not cursor and not set then
  return {'unknown'}
end
local number = set and before.paused ~= PAUSED and next_number()
if cursor then
  write_paused(ENTRY, PAUSED, WORDS)
end
if not set then
  redis.call('PEXPIRE', ENTRY, math.max(redis.call('PTTL', ENTRY), 1)) -- a write, for WAIT to wait for
  return {'paused'}
end
if number then
  local version, at = before.version + 1, time_of_change(before)
  write_paused(DEF, PAUSED)
  redis.call('HSET', DEF, 'version', int(version), 'at', at, 'words', WORDS)
  remember_change(version, at, PAUSED and 'pause' or 'resume', '')
  redis.call('ZADD', DEFS, int(number), NAME, int(number), '')
end
touch_definition()
return {'done', unpack(redis.call('HGETALL', DEF))}
