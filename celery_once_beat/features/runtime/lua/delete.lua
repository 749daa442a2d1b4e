-- delete: a definition is taken back. Its windows that aren't claimed don't run, open ones go on to their outcome: until
-- then its text is kept. Sent again as the same request, it answers the same.
--
-- IF_VERSION is the version that the caller knows, nil for any.
--
-- returns {'done', version, time}          it is deleted, now or before
--         {'unknown'}                      there is none
--         {'conflict', field, value...}    what there is instead

-- include: definition

local made, made_at = made_before()
if made then
  return {'done', made, made_at}
end
if not before.there then
  return {'unknown'}
end
if IF_VERSION and IF_VERSION ~= before.version then
  return conflict()
end
local change = next_change()

redis.call('ZREM', DEFS, NAME) -- first what frees memory: a full server then allows the next write
redis.call('ZREMRANGEBYSCORE', GONE, '-inf', int(NOW - GONE_TTL))
redis.call('HDEL', DEF, 'paused', 'loaded')
redis.call('HSET', DEF, 'deleted', '1', 'mark', change.mark, 'since', change.at)
write_change(change, 'delete', before.text)
redis.call('ZADD', GONE, change.number, NAME)
redis.call('PEXPIRE', GONE, GONE_TTL)
if redis.call('ZCARD', DEFS) == 1 then
  redis.call('PEXPIRE', DEFS, GONE_TTL)
end
redis.call('PEXPIRE', DEF, DELETED_TTL)
redis.call('PEXPIRE', CHANGES, DELETED_TTL)
if cursor and was_set(in_force or '') then
  count_from(change.at) -- no beat claims what was owed
  put_in_force(change.mark)
  redis.call('HDEL', ENTRY, 'paused', 'paused_words')
  redis.call('HSET', ENTRY, 'ttl', DELETED_TTL)
  redis.call('PEXPIRE', ENTRY, DELETED_TTL)
end
return {'done', change.version, change.at}
