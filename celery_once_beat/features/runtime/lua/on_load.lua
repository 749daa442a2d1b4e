local function runtime_on_load()
  if DEFINITION[1] then
    redis.call('HSET', DEFINITION[1], 'loaded', '1')
  end
end
