-- The field `attempts` says how often a key's window has begun: '<start> <number>' of the one that began last. The hash is
-- kept as long as the window's run key.

-- include: values
-- takes: keyed:flag

local function keyed_on_begin_alone(repeated)
  if not KEYED then
    return nil
  end
  local start, number = string.match(redis.call('HGET', ENTRY, 'attempts') or '', '^(%S+) (%d+)$')
  local before = start == START and whole(number) or 0
  if repeated then
    return math.max(before, 1)
  end
  redis.call('HSET', ENTRY, 'attempts', START .. ' ' .. int(before + 1))
  if redis.call('PTTL', ENTRY) < tonumber(RETENTION) then
    redis.call('PEXPIRE', ENTRY, RETENTION)
  end
  return before + 1
end
