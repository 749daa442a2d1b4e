-- Every verb of an entry reads its version first. It raises NEWER where a newer version wrote the hash, and BADDATA
-- where a key holds what this package didn't write. Nothing has been changed then.

-- include: now, values

-- The hash's v and cursor, then the fields that are asked for: in one command, since each costs more than its fields.
local function read_fields(...)
  local fields = redis.call('HMGET', ENTRY, 'v', 'cursor', ...)
  local version = fields[1]
  if version and version ~= VERSION and number_field('v', version) > tonumber(VERSION) then
    error('NEWER ' .. version)
  end
  instant_field('cursor', fields[2])
  return fields
end
