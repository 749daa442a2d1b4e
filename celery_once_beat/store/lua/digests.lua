-- digests: ten characters for each of some hashes; while they stay the same, so does the hash. It writes nothing.
--
-- returns one text, ten characters a key of HASHES

local digests = {}
for number, key in ipairs(HASHES) do
  local values = redis.pcall('HGETALL', key)
  digests[number] = values.err and '-unreadabl' or string.sub(redis.sha1hex(table.concat(values, ' ')), 1, 10)
end
return table.concat(digests)
