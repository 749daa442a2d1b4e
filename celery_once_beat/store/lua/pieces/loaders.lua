-- Which beats have loaded an entry. The field `loaders` of its hash lists the newest few: '<beat> <fingerprint> <server ms>',
-- separated by blanks. A living beat that isn't listed any more goes on with the definition in force.
--
-- Who lives is known in the shard: BEATS has when each beat swept it last; see sweep.lua. What counts is the time up to the
-- asking beat's own last sweep. While the shard's node is away nobody sweeps it, and nobody grows old.

-- include: now

local MOST_LOADERS = 16

-- The listed beats other than BEAT that live. Then the latest time in the list, and whether BEAT is listed.
local function read_loaders(text)
  local loaders, latest, mine = {}, 0, false
  for beat, fingerprint, at in string.gmatch(text or '', '(%S+) (%S+) (%d+)') do
    at = #at <= 15 and tonumber(at) or 0
    latest = math.max(latest, at)
    if beat == BEAT then
      mine = true
    elseif (redis.call('ZSCORE', BEATS, BEAT) or NOW) - (redis.call('ZSCORE', BEATS, beat) or 0) < BEAT_TTL then
      loaders[#loaders + 1] = {beat = beat, fingerprint = fingerprint, at = at}
    end
  end
  return loaders, latest, mine
end

-- Of two in the same millisecond the name decides, so they don't take turns.
local function loaded_later(one, other)
  return one.at > other.at or one.at == other.at and one.beat > other.beat
end

-- The text of the field. The oldest are left out if there isn't room for all.
local function listed(loaders)
  table.sort(loaders, loaded_later)
  local texts = {}
  for place = 1, math.min(#loaders, MOST_LOADERS) do
    local loader = loaders[place]
    texts[place] = string.format('%s %s %.0f', loader.beat, loader.fingerprint, loader.at)
  end
  return table.concat(texts, ' ')
end
