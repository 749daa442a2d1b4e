-- read: what keys hold, as one text: that is read in a tenth of the time that its parts take. It writes nothing.
--
-- returns JSON, a list: what each of HELD answers to COMMANDS, which take turns; false for an error. LRANGE has MOST records,
-- DIGEST ten characters for a hash: while they stay the same, so does the hash; '' for an error

local commands, found = {}, {}
for command in string.gmatch(COMMANDS, '%S+') do
  commands[#commands + 1] = command
end
for number, key in ipairs(HELD) do
  local command = commands[(number - 1) % #commands + 1]
  local list = command == 'LRANGE'
  local reply = list and redis.pcall(command, key, 0, MOST - 1) or redis.pcall('HGETALL', key)
  if command == 'DIGEST' then
    reply = reply.err and '' or string.sub(redis.sha1hex(table.concat(reply, ' ')), 1, 10)
  end
  found[number] = not reply.err and reply
end
return cjson.encode(found)
