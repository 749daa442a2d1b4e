-- marks: how each of some hashes stands, in ten characters: while they are the same, so is the hash. It writes nothing.
--
-- returns one text, ten characters a key of HASHES

local marks = {}
for number, key in ipairs(HASHES) do
  local values = redis.pcall('HGETALL', key)
  marks[number] = values.err and '-unreadabl' or string.sub(redis.sha1hex(table.concat(values, ' ')), 1, 10)
end
return table.concat(marks)
