-- The message of a child isn't needed any more. If none of its windows is open, its hash lives as long as its run key.

-- include: entry, wants_close

local function keyed_on_close(start)
  if not keyed_wants_close() then
    return
  end
  redis.call('HDEL', ENTRY, 'm:' .. start)
  for _, field in ipairs(redis.call('HKEYS', ENTRY)) do
    if string.sub(field, 1, 2) == 'm:' then
      return
    end
  end
  entry.ttl = tonumber(RETENTION)
end
