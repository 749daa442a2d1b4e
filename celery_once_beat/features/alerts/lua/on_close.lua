-- A window has its outcome: whoever asks for alerts of that gets one, and a streak of failures pauses the entry.

-- include: entry, events, pauses, wants_close, window
-- keys: failures

-- How many of a streak are named.
local MOST_NAMED = 10

-- A window ended and isn't done. What is known of it is for people: pcall.
local function note_end(start, outcome, failure)
  if (failure or '') == '' then
    failure = redis.pcall('HGET', FAILURES, start)
  end
  local what = string.format('%s %.0f %s', outcome, NOW, type(failure) == 'string' and failure or '')
  local member = member_of(start)
  if wants_ends() then
    add_alert('ended', member, what)
  end
  if type(redis.pcall('ZSCORE', LATE, member)) == 'string' then
    redis.pcall('HSET', ENDS, member, what)
    keep(ENDS)
  end
end

-- This window failed, or is done: that counts for the failures in a row. A foreign text in their place is none.
local function count_failure(outcome)
  if outcome == 'done' then
    redis.call('HDEL', ENTRY, 'streak')
    return
  end
  local number, starts = string.match(entry.streak or '0', '^(%d+)([%dTZ:. -]*)$')
  number, starts = (number and whole(number) or 0) + 1, (starts or '') .. ' ' .. START
  starts = string.sub(starts, -MOST_NAMED * (#START + 1))
  if number < entry.pause_after_failures then
    redis.call('HSET', ENTRY, 'streak', int(number) .. starts)
    return
  end
  local note = string.format('%.0f windows in a row failed:%s%s', number, number > MOST_NAMED and ' ...' or '',
    string.gsub(starts, ' (%S-)%.?0*Z', ' %1Z,'):sub(1, -2))
  write_paused(ENTRY, true, '{"by": "pause_after_failures", "note": "' .. note .. '"}')
  add_alert('paused', MEMBER, note)
end

local function alerts_on_close(start, window, outcome)
  if not alerts_wants_close() then
    return
  end
  if entry.streak and not entry.pause_after_failures then
    redis.call('HDEL', ENTRY, 'streak') -- nothing counts it any more
  end
  if NOT_LATE[outcome] then
    redis.pcall('ZREM', LATE, member_of(start))
    redis.pcall('HDEL', ENDS, member_of(start))
  end
  if outcome ~= 'done' and outcome ~= 'cancelled' then
    note_end(start, outcome, window and window.failure)
  end
  local own = window and start == START and window.backfill == 0 and not window.returned
  if own and entry.pause_after_failures and entry.paused ~= '1' and (outcome == 'done' or FAILED_AS[outcome]) then
    count_failure(outcome)
  end
end
