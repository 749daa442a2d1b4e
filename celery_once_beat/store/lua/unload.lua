-- unload: an entry has left the beat's schedule. Once no living beat has it, its definition is no longer in force:
-- a beat that loads it again, even unchanged, goes on from then, not from where it stopped.
--
-- ROW, if it isn't '': the beat has that row by another name. Once no living beat has the row by this one, in whichever
-- definition, what it had is put aside, and whoever loads it by its new name takes it from there.
--
-- returns {'unloaded'}  nobody has it now, or nobody had
--         {'kept'}      another beat that lives has it, or another definition is in force
--         {'unknown'}   there is no such entry, or it isn't made of ROW

-- include: entries, fields, loaders, pauses, rows

local fields = read_fields('fingerprint', 'loaders', 'row', 'paused', 'paused_words')
local leaves = ROW ~= ''
if not fields[2] or leaves and fields[5] ~= ROW then
  return {'unknown'}
end
local loaders, kept = read_loaders(fields[4]), not leaves and fields[3] ~= FINGERPRINT and fields[3] ~= '-'
for _, loader in ipairs(loaders) do
  kept = kept or leaves or loader.fingerprint == FINGERPRINT
end
redis.call('HSET', ENTRY, 'loaders', listed(loaders))
if kept then
  return {'kept'}
end
redis.call('HSET', ENTRY, 'fingerprint', '-')
if leaves then
  put_aside(ROW_KEY, fields[2], fields[6], fields[7])
  write_paused(ENTRY, false)
  redis.call('HSET', ENTRY, 'row', '-')
end
redis.pcall('HDEL', ENTRIES, name_of_entry())
return {'unloaded'}
