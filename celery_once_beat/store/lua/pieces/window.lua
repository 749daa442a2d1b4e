-- An open window: its account in the entry hash, and its deadline in the open zset.

-- include: entry

-- An account is eight numbers, then message, state, owner, beat and queue; see read_account. `claimed` and `expires` (0:
-- never), server ms, stay texts, since most verbs only pass them on. `revision` grows whenever the right to publish or run
-- the window moves: a confirm with an older revision is late. `message` and `state` are one of MESSAGES and STATES, which
-- store/protocol.py explains. `queue` has the last message, percent-encoded; '-' where that isn't known. '@' and who has
-- reserved it follow, see receive.lua. `start` is its field's.
local function new_window(beat, expires, start)
  return {
    start = start or START, attempts = 0, fence = 0, retry = 0, revision = 1, publishes = 1, claimed = int(NOW),
    expires = int(expires or 0), backfill = 0, message = 'none', state = 'plain', owner = '-', beat = beat, queue = '-',
  }
end

local function read_account(account, start)
  local attempts, fence, retry, revision, publishes, claimed, expires, backfill, message, state, owner, beat, queue =
    string.match(account, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%l[%l_]+) (%S+) (%S+) (%S+)$')
  local most = TOO_LARGE
  if attempts and STATES[state] and MESSAGES[message] then
    attempts, fence, retry, revision = attempts + 0, fence + 0, retry + 0, revision + 0
    publishes, backfill = publishes + 0, backfill + 0
    most = math.max(attempts, fence, retry, revision, publishes, claimed, expires, backfill)
  end
  if most >= TOO_LARGE then
    error('BADDATA ' .. ENTRY .. ' field w:' .. start .. ' is no account of a window')
  end
  return {
    start = start, attempts = attempts, fence = fence, retry = retry, revision = revision, publishes = publishes,
    claimed = claimed, expires = expires, backfill = backfill, message = message, state = state, owner = owner, beat = beat,
    queue = queue,
  }
end

-- It has never begun, and nobody ordered it.
local function is_new(window)
  return window.fence == 0 and window.backfill == 0
end

local function member_of(start)
  return start == START and MEMBER or string.sub(MEMBER, 1, -(#START + 1)) .. start
end

-- A window of the entry by its account, with its `deadline`; nil if it isn't open. Where the hash was lost while it is open,
-- it has no account.
local function find_window(start, account)
  local deadline = redis.call('ZSCORE', OPEN, member_of(start))
  if not deadline then
    return nil
  end
  local window = account and read_account(account, start) or new_window('-', 0, start)
  window.deadline = tonumber(deadline)
  return window
end

-- The window of this verb.
local function read_window()
  return find_window(START, entry.account)
end

-- `...` are further fields of the entry hash and their values.
local function write_window(w, deadline, ...)
  redis.call('HSET', ENTRY, 'w:' .. w.start, string.format(
    '%d %.0f %d %d %d %s %s %d %s %s %s %s %s', -- %d is quicker, for what fits in 31 bits
    w.attempts, w.fence, w.retry, w.revision, w.publishes, w.claimed, w.expires, w.backfill, w.message, w.state, w.owner,
    w.beat, w.queue), ...)
  keep_entry()
  if redis.call('ZADD', OPEN, deadline, member_of(w.start)) == 1 then
    keep(OPEN)
  end
end

local function set_deadline(at)
  redis.call('ZADD', OPEN, 'XX', at, MEMBER)
end
