local function runtime_on_load(stored)
  if stored then
    redis.call('HSET', DEFINITION[1], 'loaded', '1')
  end
  if stored and stored.paused then
    redis.call('HSET', ENTRY, 'paused', '1')
  end
end
