-- load: a beat says which definition of an entry it has loaded, and learns whether it may claim by it.
--
-- Of the beats alive, the one that loaded last is right. A first load (LOADED_AT 0) is later than all that are known,
-- whatever the clock says; LOADED_AT is then the beat's for good, so a repetition answers the same.
--
-- A definition that is right and new goes on from now, or from COUNTS_FROM: never an extra early run. One that is right
-- again, because the beats with the later one are gone, goes on from GO_BACK ms ago, when they can last have claimed, so
-- that no window falls between. Windows up to ABSENT_AT don't count: the entry was in no schedule. KNOWN, the cursor as
-- this beat knows it, counts only if the store has lost its own. The cursor never goes back.
--
-- returns {'loaded', cursor, loaded_at, 'new' | 'same' | 'changed' | 'back', paused 1 or 0, since}
--         {'superseded', beat, loaded_at}   a living beat loaded another definition later; nothing else changes
--         {'who', beat...}   see loaders.lua

-- The canonical text of an instant. Civil date from a day number: Howard Hinnant, "chrono-Compatible
-- Low-Level Date Algorithms", civil_from_days.
local function instant(ms, us)
  local seconds = math.floor(ms / 1000)
  local z = math.floor(seconds / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local s = seconds % 86400
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day,
    math.floor(s / 3600), math.floor(s / 60) % 60, s % 60, (ms % 1000) * 1000 + us)
end

local NOW, TIME = server_time()
local fields = read_fields('fingerprint', 'loaders', 'paused', 'since')
local cursor, since = fields[2], instant_field('since', fields[6])

local others, latest = read_loaders(fields[4])
local first = LOADED_AT == 0
local loaded_at = first and math.min(math.max(NOW, latest + 1), 999999999999999) or LOADED_AT
local me = {beat = BEAT, fingerprint = FINGERPRINT, at = loaded_at, lives = true}
local loaders, right, unsure = {me}, me, false
for _, loader in ipairs(others) do
  if loader.beat ~= BEAT then
    loaders[#loaders + 1] = loader
    unsure = unsure or not loader.lives and loaded_later(loader, me)
    right = loaded_later(loader, right) and loader or right
  end
end
-- If there isn't room for all, beats that are gone must not take the place of living ones.
if unsure or #loaders > MOST_LOADERS then
  local who = ask_who_lives(loaders)
  if #who > 1 then
    return who
  end
end

if cursor then
  redis.call('PEXPIRE', ENTRY, TTL) -- first what needs no memory: a full server lets what is there be loaded
end
if right.fingerprint ~= FINGERPRINT then
  redis.call('HSET', ENTRY, 'v', VERSION, 'loaders', listed(loaders))
  redis.call('PEXPIRE', ENTRY, TTL)
  return {'superseded', right.beat, int(loaded_at)}
end

local news, of_news = 'same', {}
local now = instant(NOW, TIME[2] % 1000)
local function up_to_now(text)
  return text < now and text or now
end
if not cursor then
  cursor, news = up_to_now(KNOWN ~= '' and KNOWN or COUNTS_FROM ~= '' and COUNTS_FROM or now), 'new'
  since = cursor
  of_news = {'born', cursor, 'since', since}
else
  local from
  if fields[3] ~= FINGERPRINT then
    news = 'changed'
    from = COUNTS_FROM ~= '' and up_to_now(COUNTS_FROM) or first and now or instant(NOW - GO_BACK, 0)
  elseif up_to_now(ABSENT_AT) > cursor then
    news, from = 'back', up_to_now(COUNTS_FROM > ABSENT_AT and COUNTS_FROM or ABSENT_AT)
  end
  if from then
    cursor = from > cursor and from or cursor
    since = cursor
    of_news = {'since', since}
    for _, field in ipairs(redis.call('HKEYS', ENTRY)) do
      if string.sub(field, 1, 2) == 'c:' then
        redis.call('HDEL', ENTRY, field)
      end
    end
  end
end
redis.call('HSET', ENTRY, 'v', VERSION, 'loaders', listed(loaders), 'cursor', cursor, 'fingerprint', FINGERPRINT,
  'ttl', TTL, 'max_attempts', MAX_ATTEMPTS, 'recover', RECOVER, 'grace', GRACE or -1,
  'again', RETRY_FAILED_AFTER or -1, 'overlap', OVERLAP ~= '' and OVERLAP or '-', unpack(of_news))
redis.call('PEXPIRE', ENTRY, TTL)
return {'loaded', cursor, int(loaded_at), news, fields[5] == '1' and 1 or 0, since or cursor}
