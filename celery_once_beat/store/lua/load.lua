-- load: a beat reports which definition of an entry it has loaded, and learns whether it may claim by it.
--
-- Of the beats alive, the one that loaded last is right. A first load (LOADED_AT 0) is later than all known ones,
-- whatever the clock; LOADED_AT is then the beat's for good, so a repetition answers the same.
--
-- A definition that is right and new goes on from now, or from COUNTS_FROM: never an extra early run. One that is right
-- again, because the beats with the later one are gone, goes on from GO_BACK ms ago, when they can last have claimed, so
-- that no window falls between. If the store has forgotten that it was right, it goes on from COUNTED_FROM, as the store had
-- told this beat. Windows up to ABSENT_AT don't count: the entry was in no schedule. KNOWN, the cursor as this beat knows it,
-- counts only if the store has lost its own. The cursor never goes back.
--
-- A definition that was set at run time is in force as long as DEFINITION, its hash, has it, whichever beat loaded what. It
-- counts from when it was set, also if no beat lived then. One of a living beat's own schedule goes before it. One that was
-- replaced while the beat read it is loaded all the same, for what is owed from before it; see claim.
--
-- Behind a '~' a fingerprint has a digest of the time zones' rules as the beat knows them. Of beats that have the same
-- definition and other rules, the one that loaded last is right, also where it was set at run time: its mark is put in force
-- without rules, and the first load adds them.
--
-- ROW is the database's row that the entry is made of, '' for none, and ROW_AT when that was edited last. Another row by the
-- same name is another entry: it counts from COUNTS_FROM or its edit, once no other living beat may have the one before, and
-- the pause of that one has ended. A row that comes from another name brings its pause along: PAUSE is '-' where it isn't
-- paused, else the words; '' where it comes from nowhere. If the store has lost the entry, PAUSE is what this beat knew.
--
-- OPTIONS: '<name> <value> ...', see entry.lua. DEFINED describes the entry, display only, '' for nothing;
-- see entries.lua.
--
-- returns 'loaded <cursor> <loaded_at> <new, same, changed or back> <since> <pause>'   pause: its words, '' where it isn't
--                                 paused. One text, since it is read for each entry
--         {'superseded', beat, loaded_at, fingerprint}   a living beat loaded another definition later, the one with this
--                                 fingerprint; nothing else changes. beat is '-', without one, where another was set at run
--                                 time, or another living beat may have another row by this name

-- include: entries, fields, in_force, instants, loaders, pauses, rows
-- hooks: before_load, on_load

local fields = read_fields('fingerprint', 'loaders', 'paused', 'since', 'row', 'paused_words')
local cursor, since = fields[2], instant_field('since', fields[6])
local comes = ROW ~= '' and fields[7] ~= ROW
local other_row = comes and fields[7]

local others, latest = read_loaders(fields[4])
local first = LOADED_AT == 0
local loaded_at = first and math.min(math.max(NOW, latest + 1), 999999999999999) or LOADED_AT
local stored = before_load(cursor)
local paused, mark = fields[5] == '1' or stored and stored.paused, stored and stored.mark
local function answer(news)
  local words = paused and (redis.call('HGET', ENTRY, 'paused_words') or '{}') or ''
  return table.concat({'loaded', cursor, int(loaded_at), news, since or cursor, words}, ' ')
end
if stored and not stored.in_force then
  if not stored.replaced_by or cursor and not was_set(fields[3] or '-') then
    return {'superseded', '-', int(loaded_at)}
  end
  if cursor then
    redis.call('PEXPIRE', ENTRY, TTL) -- a write, for WAIT to wait for
    return answer('same')
  end
end
local counts_from = stored and stored.counts_from or COUNTS_FROM
if other_row and others[1] then
  redis.call('HSET', ENTRY, 'v', VERSION, 'loaders', listed(others)) -- this beat has left the row before
  return {'superseded', '-', int(loaded_at)}
end
local me = {beat = BEAT, fingerprint = FINGERPRINT, at = loaded_at, untracked = ''}
local loaders, right = {me}, me
for _, loader in ipairs(others) do
  loaders[#loaders + 1] = loader
  local old = was_set(loader.fingerprint) and string.match(loader.fingerprint, '^[^~]*') ~= mark
  if not old and outranks(loader, right) then
    right = loader
  end
end

if cursor then
  redis.call('PEXPIRE', ENTRY, TTL) -- first what needs no memory: a full server lets what is there be loaded
end
if right.fingerprint ~= FINGERPRINT then
  redis.call('HSET', ENTRY, 'v', VERSION, 'loaders', listed(loaders))
  redis.call('PEXPIRE', ENTRY, TTL)
  return {'superseded', right.beat, int(loaded_at), right.fingerprint}
end

if other_row then
  put_aside(string.sub(ROW_KEY, 1, #ROW_KEY - #ROW) .. other_row, cursor, fields[5], fields[8])
  counts_from = counts_from ~= '' and counts_from or ROW_AT
end
local news, of_news = 'same', {}
local now = instant(NOW, TIME[2] % 1000)
local function up_to_now(text)
  return text < now and text or now
end
local from
if not cursor then
  news, from = 'new', up_to_now(KNOWN ~= '' and KNOWN or counts_from ~= '' and counts_from or now)
  of_news = {'born', from}
elseif (fields[3] ~= FINGERPRINT and fields[3] ~= mark) or other_row then
  news = 'changed'
  local go_back = instant(NOW - GO_BACK, 0)
  from = counts_from ~= '' and up_to_now(counts_from) or first and now
    or COUNTED_FROM > (since or cursor) and up_to_now(COUNTED_FROM) or go_back
elseif up_to_now(ABSENT_AT) > cursor then
  news, from = 'back', up_to_now(counts_from > ABSENT_AT and counts_from or ABSENT_AT)
end
if from then
  cursor = cursor and cursor > from and cursor or from
  since = cursor
  forget_counts()
end
if other_row or (comes or news == 'new') and PAUSE ~= '' then -- else somebody may have changed it since
  paused = PAUSE ~= '' and PAUSE ~= '-'
  write_paused(ENTRY, paused, PAUSE)
end
if ROW ~= '' then
  of_news[#of_news + 1], of_news[#of_news + 2] = 'row', ROW
  redis.pcall('SET', ROW_KEY, '- ' .. name_of_entry(), 'PX', TTL + DAY)
elseif fields[7] then
  redis.call('HDEL', ENTRY, 'row')
end
for option, value in string.gmatch(OPTIONS, '(%S+) (%S+)') do
  of_news[#of_news + 1], of_news[#of_news + 2] = option, value
end
local in_force = stored and not stored.in_force and stored.replaced_by or FINGERPRINT
redis.call('HSET', ENTRY, 'v', VERSION, 'loaders', listed(loaders), 'cursor', cursor, 'since', since or cursor,
  'fingerprint', in_force, 'ttl', TTL, unpack(of_news))
redis.call('PEXPIRE', ENTRY, TTL)
if DEFINED ~= '' then
  list_entry(TTL)
  if news ~= 'new' then -- at a first start none has expired
    unlist_expired()
  end
end
on_load(stored)
return answer(news)
