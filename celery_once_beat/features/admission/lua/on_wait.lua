-- include: line

local function admission_on_wait(window, verdict)
  if (verdict.limit or '') ~= '' then
    redis.call('HSET', ENTRY, 'limit', verdict.limit)
  end
  if verdict.in_line then
    redis.call('HSET', ENTRY, 'waits', '1')
  end
  if verdict.state == 'waits_turn' then
    redis.call('ZADD', LINES, NOW + LONGEST_WAIT, ENTRY)
    redis.call('PEXPIRE', LINES, 2 * LONGEST_WAIT)
    call_next()
  end
end
