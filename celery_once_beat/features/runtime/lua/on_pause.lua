-- include: definition

local function runtime_on_pause(before)
  if before.number then
    local version, at = before.version + 1, time_of_change(before)
    write_paused(DEF, PAUSED)
    if not PAUSED and (before.idle or FROM_NOW and redis.call('HEXISTS', ENTRY, 'cursor') == 0) then
      count_from(at)
    end
    redis.call('HSET', DEF, 'version', int(version), 'at', at, 'words', WORDS)
    remember_change(version, at, PAUSED and 'pause' or 'resume', '')
    redis.call('ZADD', DEFS, int(before.number), NAME, int(before.number), '')
  end
  touch_definition()
  return {'done', unpack(redis.call('HGETALL', DEF))}
end
