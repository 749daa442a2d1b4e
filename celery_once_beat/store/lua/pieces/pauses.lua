-- An entry, or a definition that was set at run time, is paused or resumed.

-- include: now, values

-- First what needs no memory: a full server then allows the next write. `key` is the entry's, or its definition's; without
-- `words` the words of an earlier pause stay. Words that lack the time of the pause get it as `at`, server ms.
local function write_paused(key, paused, words)
  local since = string.match(redis.call('HGET', key, 'paused_words') or '', '^{"at": %d+') or '{"at": ' .. int(NOW)
  redis.call('HDEL', key, 'paused')
  if not paused then
    redis.call('HDEL', key, 'paused_words', 'streak')
  elseif words then
    if not string.find(words, '^{"at": ') then
      words = since .. (words == '{}' and '}' or ', ' .. string.sub(words, 2))
    end
    redis.call('HSET', key, 'paused', '1', 'paused_words', words)
  else
    redis.call('HSET', key, 'paused', '1')
  end
end
