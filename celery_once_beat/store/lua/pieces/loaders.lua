-- Which beats have loaded an entry. The field `loaders` of its hash lists the newest few: '<beat> <fingerprint> <server ms>',
-- separated by blanks. A living beat that isn't listed any more goes on with the definition in force.
--
-- The caller says which beats it knows to be alive (LIVING) or gone (GONE), as of ASKED_AT (nil: now). If a script has to
-- know that of others, it answers {'who', beat...} and changes nothing.

-- include: now

local MOST_LOADERS = 16

local function set_of(words)
  local set = {}
  for word in string.gmatch(words, '%S+') do
    set[word] = true
  end
  return set
end

-- The listed beats that aren't known to be gone; `lives` is true, or nil if that isn't known. Then the latest time in
-- the list.
local function read_loaders(text)
  local alive, gone = set_of(LIVING), set_of(GONE)
  local loaders, latest = {}, 0
  for beat, fingerprint, at in string.gmatch(text or '', '(%S+) (%S+) (%d+)') do
    at = #at <= 15 and tonumber(at) or 0
    latest = math.max(latest, at)
    -- A beat that has loaded since ASKED_AT couldn't be in the answer: it lives. A time in the future is of a clock that
    -- went back since, and says nothing.
    local lives = alive[beat] or at >= (ASKED_AT or math.huge) and at <= NOW or nil
    if lives or not gone[beat] then
      loaders[#loaders + 1] = {beat = beat, fingerprint = fingerprint, at = at, lives = lives}
    end
  end
  return loaders, latest
end

-- Of two in the same millisecond the name decides, so they don't take turns.
local function loaded_later(one, other)
  return one.at > other.at or one.at == other.at and one.beat > other.beat
end

local function ask_who_lives(loaders)
  local answer = {'who'}
  for _, loader in ipairs(loaders) do
    if not loader.lives then
      answer[#answer + 1] = loader.beat
    end
  end
  return answer
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
