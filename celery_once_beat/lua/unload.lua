-- unload: an entry has left the beat's schedule. Once no living beat has it, its definition is in force no more: whoever
-- loads it again, the same one too, goes on from then, not from where it stopped. Stands without the prelude.
--
-- KEYS[1] entry hash   ARGV[1] beat   ARGV[2] fingerprint of the definition that left
-- ARGV[3] when this beat asked who lives, server ms, '' for now   ARGV[4...] the beats that lived then
--
-- returns {'unloaded'}  nobody has it now, or nobody had
--         {'kept'}      another beat that lives has it, or another definition is in force
--         {'unknown'}   there is no such entry
--         {'newer', version}

local fields = redis.call('HMGET', KEYS[1], 'cursor', 'v', 'fingerprint', 'loaders')
if not fields[1] then
  return {'unknown'}
end
local version = tonumber(string.match(fields[2] or '1', '^%d+$'))
if not version then
  return redis.error_reply('BADDATA ' .. KEYS[1] .. ' has no version')
end
if version > 1 then
  return {'newer', fields[2]}
end
local asked_at = tonumber(ARGV[3]) or math.huge
local alive = {}
for position = 4, #ARGV do
  alive[ARGV[position]] = true
end
local loaders, others = {}, false
for beat, fingerprint, at in string.gmatch(fields[4] or '', '(%S+) (%S+) (%d+)') do
  if beat ~= ARGV[1] then
    loaders[#loaders + 1] = beat .. ' ' .. fingerprint .. ' ' .. at
    -- Who has loaded since this beat asked couldn't be in the answer: it lives.
    others = others or (alive[beat] or tonumber(at) >= asked_at) and fingerprint == ARGV[2]
  end
end
redis.call('HSET', KEYS[1], 'loaders', table.concat(loaders, ' '))
if others or fields[3] ~= ARGV[2] and fields[3] ~= '-' then
  return {'kept'}
end
redis.call('HSET', KEYS[1], 'fingerprint', '-')
return {'unloaded'}
