-- A beat says which definition of an entry it has loaded, and learns whether it may claim by it.
--
-- KEYS[1] entry hash
-- ARGV[1] beat   ARGV[2] fingerprint   ARGV[3] when this beat first loaded it, server ms, 0 at its first time
-- ARGV[4] ttl ms of the entry   ARGV[5] ms to go back where a vanished beat's definition is replaced
-- ARGV[6] max_attempts   ARGV[7] recover 1 or 0   ARGV[8] grace ms, -1 for none
-- ARGV[9] ms after which a window that failed runs again, 0: never, -1: as its task says
-- ARGV[10] overlap: 'allow', 'skip', '-': as its task says
-- ARGV[11] the cursor that this beat knows, '' for none; counts only where the store has lost its own
-- ARGV[12] from where a definition that is new, changed or back counts, '' for now; the cursor never goes back for it
-- ARGV[13] until when this beat knows that the entry was in no schedule, '' for never: windows up to then don't count
-- ARGV[14...] who lives (loaders)
--
-- returns {'loaded', cursor, loaded_at, 'new' | 'same' | 'changed' | 'back', paused 1 or 0, since}
--         {'superseded', beat, loaded_at}   a living beat loaded another definition later; nothing else changes
--         {'who', beat...}   whether these live has to be known (loaders)
--         {'newer', version}
--
-- Of the beats alive, the one that loaded last is right; a first load is later than all that are known, whatever the
-- clock says. A definition that is right and new goes on from now:
-- never an extra early run. One that is right again, because the beats with the later one are gone, goes on
-- from when they can last have claimed, so that no window falls between.

local ENTRY, BEAT, FINGERPRINT = KEYS[1], ARGV[1], ARGV[2]
local VERSION = 1
local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

local function int(number)
  return string.format('%.0f', number)
end

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

local fields = redis.call('HMGET', ENTRY, 'v', 'cursor', 'fingerprint', 'loaders', 'paused', 'since')
local version, cursor, since = tonumber(string.match(fields[1] or VERSION, '^%d+$')), fields[2], fields[6]
if not version then
  return redis.error_reply('BADDATA ' .. ENTRY .. ' has no version')
end
if cursor and not string.match(cursor, '^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ$') then
  return redis.error_reply('BADDATA ' .. ENTRY .. ' has a cursor that is no instant')
end
if since and not string.match(since, '^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ$') then
  return redis.error_reply('BADDATA ' .. ENTRY .. ' has a since that is no instant')
end
if version > VERSION then
  return {'newer', fields[1]}
end

local others, latest = read_loaders(fields[4], 14, NOW)
local loaded_at = tonumber(ARGV[3])
local first = loaded_at == 0
if first then
  loaded_at = math.min(math.max(NOW, latest + 1), 999999999999999)
end
local me = {beat = BEAT, fingerprint = FINGERPRINT, at = loaded_at, lives = true}
local loaders, right, unsure = {me}, me, false
for _, loader in ipairs(others) do
  if loader.beat ~= BEAT then
    loaders[#loaders + 1] = loader
    unsure = unsure or not loader.lives and loaded_later(loader, me)
    right = loaded_later(loader, right) and loader or right
  end
end
-- Where there isn't room for all, nobody who is gone takes the place of one that lives.
if unsure or #loaders > MOST_LOADERS then
  local who = ask_who_lives(loaders)
  if #who > 1 then
    return who
  end
end

if cursor then
  redis.call('PEXPIRE', ENTRY, ARGV[4]) -- first what needs no memory: a full server lets what is there be loaded
end
redis.call('HSET', ENTRY, 'v', VERSION, 'loaders', write_loaders(loaders))
if right.fingerprint ~= FINGERPRINT then
  redis.call('PEXPIRE', ENTRY, ARGV[4])
  return {'superseded', right.beat, int(loaded_at)}
end

local news = 'same'
local now = instant(NOW, time[2] % 1000)
local function up_to_now(text)
  return text < now and text or now
end
if not cursor then
  cursor, news = up_to_now(ARGV[11] ~= '' and ARGV[11] or ARGV[12] ~= '' and ARGV[12] or now), 'new'
  since = cursor
  redis.call('HSET', ENTRY, 'born', cursor, 'since', since)
else
  local from
  if fields[3] ~= FINGERPRINT then
    news = 'changed'
    from = ARGV[12] ~= '' and up_to_now(ARGV[12]) or first and now or instant(NOW - ARGV[5], 0)
  elseif up_to_now(ARGV[13]) > cursor then
    news, from = 'back', up_to_now(ARGV[12] > ARGV[13] and ARGV[12] or ARGV[13])
  end
  if from then
    cursor = from > cursor and from or cursor
    since = cursor
    for _, field in ipairs(redis.call('HKEYS', ENTRY)) do
      if string.sub(field, 1, 2) == 'c:' then
        redis.call('HDEL', ENTRY, field)
      end
    end
    redis.call('HSET', ENTRY, 'since', since)
  end
end
redis.call('HSET', ENTRY, 'cursor', cursor, 'fingerprint', FINGERPRINT, 'ttl', ARGV[4],
  'max_attempts', ARGV[6], 'recover', ARGV[7], 'grace', ARGV[8], 'again', ARGV[9], 'overlap', ARGV[10])
redis.call('PEXPIRE', ENTRY, ARGV[4])
return {'loaded', cursor, int(loaded_at), news, fields[5] == '1' and 1 or 0, since or cursor}
