-- unload: an entry has left the beat's schedule. Once no living beat has it, its definition is in force no more: whoever
-- loads it again, the same one too, goes on from then, not from where it stopped. Stands without the prelude.
--
-- KEYS[1] entry hash   ARGV[1] beat   ARGV[2] fingerprint of the definition that left   ARGV[3...] who lives (loaders)
--
-- returns {'unloaded'}  nobody has it now, or nobody had
--         {'kept'}      another beat that lives has it, or another definition is in force
--         {'unknown'}   there is no such entry
--         {'who', beat...}   whether these live has to be known (loaders)
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
local time = redis.call('TIME')
local in_force = fields[3] == ARGV[2] or fields[3] == '-'
local loaders, same, kept = {}, {}, not in_force
for _, loader in ipairs((read_loaders(fields[4], 3, time[1] * 1000 + math.floor(time[2] / 1000)))) do
  if loader.beat ~= ARGV[1] then
    loaders[#loaders + 1] = loader
    if loader.fingerprint == ARGV[2] then
      same[#same + 1] = loader
      kept = kept or loader.lives
    end
  end
end
if not kept and #same > 0 then
  return ask_who_lives(same)
end
redis.call('HSET', KEYS[1], 'loaders', write_loaders(loaders))
if kept then
  return {'kept'}
end
redis.call('HSET', KEYS[1], 'fingerprint', '-')
return {'unloaded'}
