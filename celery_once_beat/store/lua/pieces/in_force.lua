-- Whether the definition with this fingerprint was set at run time; else it is of a beat's own schedule.
local function was_set(fingerprint)
  return string.sub(fingerprint, 1, 4) == 'def:'
end

-- The definition in force is another one: no outcome of its windows is known yet.
local function forget_counts()
  for _, field in ipairs(redis.call('HKEYS', ENTRY)) do
    if string.sub(field, 1, 2) == 'c:' then
      redis.call('HDEL', ENTRY, field)
    end
  end
end
