-- include: definition

local function runtime_on_pause()
  local change = before.change
  if change then
    write_paused(DEF, PAUSED)
    if not PAUSED and (not before.first or FROM_NOW and not cursor) then
      count_from(change.at)
    end
    write_change(change, PAUSED and 'pause' or 'resume', '')
    redis.call('ZADD', DEFS, change.number, NAME)
  end
  touch_definition()
  return {'done', unpack(redis.call('HGETALL', DEF))}
end
