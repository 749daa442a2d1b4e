-- Stands before each verb that asks which beats have loaded an entry: load, unload, postpone.
--
-- The field `loaders` of the entry hash lists the newest few: '<beat> <fingerprint> <server ms>', separated by blanks.
-- Who isn't listed any more, and lives, finds out at its next claim if that mattered, and loads the entry again.
--
-- Its last arguments say who lives, as far as the asking beat knows and it may matter:
--   when it asked who lives, server ms, '' for now   how many of the following live   those   then beats that are gone
-- Whoever's state is needed and isn't among them is asked for: {'who', beat...}. Nothing is changed by that.

local MOST_LOADERS = 16

-- The listed beats that aren't known to be gone; `lives` is true or nil: not known. Then the latest time in the list.
local function read_loaders(text, position, now)
  local asked_at, living = tonumber(ARGV[position]) or math.huge, tonumber(ARGV[position + 1])
  local alive, gone = {}, {}
  for place = position + 2, #ARGV do
    local known = place < position + 2 + living and alive or gone
    known[ARGV[place]] = true
  end
  local loaders, latest = {}, 0
  for beat, fingerprint, at in string.gmatch(text or '', '(%S+) (%S+) (%d+)') do
    at = #at <= 15 and tonumber(at) or 0
    latest = math.max(latest, at)
    -- Who has loaded since this beat asked couldn't be in the answer: it lives. A time that is still to come is of a
    -- clock that went back since, and says nothing.
    local lives = alive[beat] or at >= asked_at and at <= now or nil
    if lives or not gone[beat] then
      loaders[#loaders + 1] = {beat = beat, fingerprint = fingerprint, at = at, lives = lives}
    end
  end
  return loaders, latest
end

-- Two in the same millisecond: by name, so that they don't take turns.
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

-- As the field has it; what there is no room for are the oldest.
local function write_loaders(loaders)
  table.sort(loaders, loaded_later)
  local texts = {}
  for place = 1, math.min(#loaders, MOST_LOADERS) do
    local loader = loaders[place]
    texts[place] = string.format('%s %s %.0f', loader.beat, loader.fingerprint, loader.at)
  end
  return table.concat(texts, ' ')
end
