-- pause, resume: the entry's windows aren't claimed while it is paused; open windows continue. The entry's field is what claims
-- look at; a feature may keep the same with the definition.
--
-- ONLY_STILL: it was paused before, and is to be so in its definition too, unless somebody has resumed it since.
--
-- returns {'done', field, value...}   it is as asked, now or before: what a feature has from then on
--         {'paused'}    the same, of an entry of which no feature has anything
--         {'unknown'}   there is no such entry

-- include: fields, pauses
-- hooks: before_pause, on_pause

local cursor, kept = read_fields()[2], before_pause()
if ONLY_STILL and redis.call('HGET', ENTRY, 'paused') ~= '1' or not cursor and not kept then
  return {'unknown'}
end
if cursor then
  write_paused(ENTRY, PAUSED, WORDS)
end
if kept then
  return on_pause()
end
redis.call('PEXPIRE', ENTRY, math.max(redis.call('PTTL', ENTRY), 1)) -- a write, for WAIT to wait for
return {'paused'}
