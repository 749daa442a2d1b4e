-- The end of a window.

-- include: plain_end, records, window
-- hooks: on_close, on_release

local function close_window(window, outcome, owner, ran)
  end_window(window, outcome, owner, ran, on_close)
  on_release()
end

-- End other windows as skipped. close_window ends only this script's own.
local function skip_others(others, owner)
  check_count('c:skipped')
  check_count('x:skipped')
  for _, each in ipairs(others) do
    local start, window = each.start, each.window
    make_room()
    redis.call('ZREM', OPEN, member_of(start))
    redis.call('HDEL', ENTRY, 'w:' .. start)
    redis.call('HINCRBY', ENTRY, counts(start) and 'c:skipped' or 'x:skipped', 1)
    remember(start, 'skipped', window.claimed, 0, NOW - window.claimed, window.attempts, window.beat, owner)
    on_close(start, window, 'skipped')
  end
end
