-- include: entry

-- `key` is a hash by start, for people: it keeps the newest `most`, as long as the entry.
local function keep_newest(key, most)
  redis.call('PEXPIRE', key, entry.ttl)
  local starts = redis.call('HKEYS', key)
  table.sort(starts)
  for place = 1, #starts - most do
    redis.call('HDEL', key, starts[place])
  end
end
