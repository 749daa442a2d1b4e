-- unload: an entry has left the beat's schedule. Once no living beat has it, its definition is no longer in force:
-- a beat that loads it again, even unchanged, goes on from then, not from where it stopped.
--
-- returns {'unloaded'}  nobody has it now, or nobody had
--         {'kept'}      another beat that lives has it, or another definition is in force
--         {'unknown'}   there is no such entry

-- include: entries, entry, loaders

local fields = read_fields('fingerprint', 'loaders')
if not fields[2] then
  return {'unknown'}
end
local loaders, kept = read_loaders(fields[4]), fields[3] ~= FINGERPRINT and fields[3] ~= '-'
for _, loader in ipairs(loaders) do
  kept = kept or loader.fingerprint == FINGERPRINT
end
redis.call('HSET', ENTRY, 'loaders', listed(loaders))
if kept then
  return {'kept'}
end
redis.call('HSET', ENTRY, 'fingerprint', '-')
unlist_entry()
return {'unloaded'}
