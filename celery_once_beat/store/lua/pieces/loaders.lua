-- Which beats have loaded an entry. The field `loaders` of its hash lists the newest few: '<beat> <fingerprint> <server ms>',
-- separated by blanks; behind the time of one that has said since that it doesn't track the entry stands 'u'. A living beat
-- that isn't listed any more goes on with the definition in force.
--
-- Who lives is known in the shard: BEATS has when each beat swept it last; see sweep.lua. What counts is the time up to the
-- asking beat's own last sweep. While the shard's node is away nobody sweeps it, and nobody grows old.

-- include: in_force, now

local MOST_LOADERS = 16

-- The listed beats other than BEAT that live. Then the latest time in the list, and BEAT's own row; nil if it isn't listed.
local function read_loaders(text)
  local loaders, latest, mine = {}, 0, nil
  for beat, fingerprint, at, untracked in string.gmatch(text or '', '(%S+) (%S+) (%d+)(u?)') do
    at = #at <= 15 and tonumber(at) or 0
    latest = math.max(latest, at)
    local loader = {beat = beat, fingerprint = fingerprint, at = at, untracked = untracked}
    if beat == BEAT then
      mine = loader
    elseif (redis.call('ZSCORE', BEATS, BEAT) or NOW) - (redis.call('ZSCORE', BEATS, beat) or 0) < BEAT_TTL then
      loaders[#loaders + 1] = loader
    end
  end
  return loaders, latest, mine
end

-- Whether `one` counts, and not `other`: of a beat's own schedule and a definition that was set at run time the former, else
-- what was loaded later. Of two in the same millisecond the name decides, so they don't take turns.
local function outranks(one, other)
  local own = not was_set(one.fingerprint)
  if own == was_set(other.fingerprint) then
    return own
  end
  return one.at > other.at or one.at == other.at and one.beat > other.beat
end

-- The text of the field. The last are left out if there isn't room for all.
local function listed(loaders)
  table.sort(loaders, outranks)
  local texts = {}
  for place = 1, math.min(#loaders, MOST_LOADERS) do
    local loader = loaders[place]
    texts[place] = string.format('%s %s %.0f%s', loader.beat, loader.fingerprint, loader.at, loader.untracked)
  end
  return table.concat(texts, ' ')
end
