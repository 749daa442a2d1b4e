-- An open window: its account in the entry hash, and its deadline in the open zset.

local function is_open()
  return redis.call('ZSCORE', OPEN, MEMBER) ~= false
end

-- An account is these numbers, then owner and beat. `turn` changes with each claim, take, begin and hand over, so a late
-- confirm can be told. `released` says whether the last owner gave the window back, and for what. `taken` is 1 from a take
-- until its confirm, then SENT once the message went out; 0: not yet, or an older version confirmed it.
local NUMBERS = {
  'attempts', 'fence', 'retry', 'turn', 'publishes', 'claimed', 'expires', 'backfill', 'released', 'taken',
}

local SENT = 2

-- Values of `released`. HELD also before the first begin, and after an execution died.
local HELD, TO_RETRY, TO_RUN_AGAIN = 0, 1, 2
-- A beat has taken the window that is to run again; any copy may begin.
local RUN_AGAIN_DUE = 3

local function new_window(beat, expires)
  return {
    attempts = 0, fence = 0, retry = 0, turn = 1, publishes = 1, claimed = NOW, expires = expires or 0,
    backfill = 0, released = HELD, taken = 0, owner = '-', beat = beat,
  }
end

local function read_window(start)
  local text
  if start then
    text = redis.call('HGET', ENTRY, 'w:' .. start)
  else
    text = account
  end
  if not text then
    return new_window('-', 0)
  end
  local w = {}
  w.attempts, w.fence, w.retry, w.turn, w.publishes, w.claimed, w.expires, w.backfill, w.released, w.taken, w.owner,
    w.beat = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)$')
  for _, name in ipairs(NUMBERS) do
    w[name] = w[name] and whole(w[name])
    if not w[name] then
      error('BADDATA ' .. ENTRY .. ' field w:' .. (start or START) .. ' is no account of a window')
    end
  end
  return w
end

-- The zset lives as long as its longest-lived entry, and a day longer, so not every write has to renew it.
local function keep_open()
  -- PTTL -1: the zset is new, -2 can't be.
  if redis.call('PTTL', OPEN) < entry.ttl then
    redis.call('PEXPIRE', OPEN, entry.ttl + DAY)
  end
end

-- `...` are further fields of the entry hash and their values, here and below.
local function write_window_at(start, member, w, deadline, ...)
  redis.call('HSET', ENTRY, 'w:' .. start, string.format(
    '%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s %s',
    w.attempts, w.fence, w.retry, w.turn, w.publishes, w.claimed, w.expires, w.backfill, w.released, w.taken, w.owner,
    w.beat), ...)
  keep_entry()
  if redis.call('ZADD', OPEN, int(deadline), member) == 1 then
    keep_open()
  end
end

local function write_window(window, deadline, ...)
  write_window_at(START, MEMBER, window, deadline, ...)
end

local function set_deadline(at)
  redis.call('ZADD', OPEN, int(at), MEMBER)
end

local function member_of(start)
  return string.sub(MEMBER, 1, -(#START + 1)) .. start
end

-- The account and the deadline of another window of the entry; nil where it isn't open.
local function another(start)
  if not start or start == START or not redis.call('HGET', ENTRY, 'w:' .. start) then
    return nil
  end
  return read_window(start), tonumber(redis.call('ZSCORE', OPEN, member_of(start)) or 0)
end
