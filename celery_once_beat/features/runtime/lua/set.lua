-- set: a definition is made, or takes the place of another. Sent again as the same request, it answers the same.
--
-- IF_VERSION is the version that the caller knows, 0 for none, nil for any. PAUSED is 1 or 0, nil to leave that as it is.
-- METADATA is JSON, '' to leave it as it is; a change of it alone makes no version, and no beat reads it.
--
-- The new one counts from now: its windows start later. The old one's up to now stay owed, so the cursor stays, and who
-- reads the changes knows which windows are whose. After a deletion nothing is owed. A definition of a living beat's own
-- schedule stays in force.
--
-- With COUNTS_FROM another scheduler has run its windows up to there: they don't count, and later ones are owed. The cursor
-- never goes back.
--
-- returns 'done', version, time, paused 1 or 0, words, metadata: lines of one text; it is as asked, now or before
--         'same', …                        it was as asked already but for METADATA: nothing else changes
--         {'conflict', field, value...}    what there is instead; nothing but the word where there is none

-- include: definition, pauses

local function answer(word, version, at, paused)
  local kept = redis.call('HMGET', DEF, 'words', 'metadata')
  return table.concat({word, version, at, paused and 1 or 0, kept[1] or '', kept[2] or ''}, '\n')
end

local made, made_at = made_before()
if made then
  return answer('done', made, made_at, before.paused)
end
if IF_VERSION and IF_VERSION ~= (before.there and before.version or 0) then
  return conflict()
end
local paused = PAUSED == 1 or not PAUSED and before.paused
local counted = cursor or before.first or ''
if before.text == TEXT and before.paused == paused and COUNTS_FROM <= counted then
  touch_definition()
  if METADATA ~= '' then
    redis.call('HSET', DEF, 'metadata', METADATA)
  end
  return answer('same', int(before.version), before.at, paused)
end
local change = next_change()
local since = change.at
local starts = not before.there or not before.first and not paused
if COUNTS_FROM ~= '' and COUNTS_FROM < since and (before.there or COUNTS_FROM > counted) then
  since = COUNTS_FROM > counted and COUNTS_FROM or counted
end

write_change(change, 'set', before.text)
redis.call('HSET', DEF, 'text', TEXT, 'mark', change.mark, 'since', since)
if not before.there then
  redis.call('HDEL', DEF, 'deleted', 'loaded', 'metadata')
end
if METADATA ~= '' then
  redis.call('HSET', DEF, 'metadata', METADATA)
end
write_paused(DEF, paused)
redis.call('ZADD', DEFS, change.number, NAME)
redis.call('ZREM', GONE, NAME)
redis.call('PERSIST', DEF)
redis.call('PERSIST', CHANGES)
redis.call('PERSIST', DEFS)
if starts or COUNTS_FROM ~= '' then
  count_from(since)
end
if not before.there and paused and COUNTS_FROM == '' then
  redis.call('HDEL', DEF, 'first')
end
if cursor and no_beats_own then
  put_in_force(change.mark)
  write_paused(ENTRY, paused)
end
return answer('done', change.version, change.at, paused)
