-- Stands before each verb of a window: who is spoken of, and what is known of it.
--
-- KEYS[1] entry hash   KEYS[2] open zset   KEYS[3] history list   KEYS[4] run key of the window
-- ARGV[1] start, the canonical instant: fixed width, so text order is time order
-- ARGV[2] the window's member in the open zset, <entry>@<start>
-- ARGV[3] marker_ttl ms   ARGV[4] retention ms   ARGV[5] history_size in windows
--
-- Fields of the entry hash; instants are canonical texts, durations ms:
--   v             version of the protocol that wrote it; absent: 1
--   cursor        latest claimed start   born: the cursor that the hash was made with
--   since         the cursor from which the present definition counts
--   ttl           how long the hash lives after the last contact
--   fence         the largest that a begin was given
--   last_done     start of the latest window that was done; absent: none
--   fingerprint   the definition in force
--   loaders       which beats loaded which: '<beat> <fingerprint> <server ms>', separated by blanks
--   paused        1; absent: not paused
--   max_attempts, recover (1 or 0), grace (-1: none)   the limits of the definition in force
--   refused       how many copies begin refused
--   w:<start>     the account of an open window (NUMBERS, owner, beat)
--   c:<outcome>   how many windows of the present definition ended so   x:<outcome>: of all others
--
-- Any verb may answer {'newer', version}: the hash was written by a newer version; nothing was changed.
-- It raises BADDATA where a key holds what this package didn't put there.

local ENTRY, OPEN, HISTORY, RUN = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local START, MEMBER = ARGV[1], ARGV[2]
local MARKER_TTL, RETENTION, HISTORY_SIZE = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local VERSION = 1
-- A deadline lies this many ms behind the expiry of the run key it waits for.
local MARGIN = 1000
local DAY = 86400000

local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

-- Lua would write 1.7e+12.
local function int(number)
  return string.format('%.0f', number)
end

-- A whole number as this package writes it, or nil: tonumber takes 'nan', '0x10' and ' 7 ' too, and what is beyond 15
-- digits overflows elsewhere.
local function whole(text)
  return #text <= 15 and string.match(text, '^%d+$') and tonumber(text) or nil
end

local function is_instant(text)
  return string.match(text, '^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ$') ~= nil
end

-- Raised before the first write: nothing half-written is left behind.
local function bad_field(name, value, expected)
  local found = string.sub(string.gsub(value, '%c', '?'), 1, 40)
  error('BADDATA ' .. ENTRY .. ' field ' .. name .. ': found ' .. found .. ', expected ' .. expected)
end

-- The number in a field of the entry hash, or `default` where there is none.
local function number_field(name, value, default)
  if not value then
    return default
  end
  return whole(value) or bad_field(name, value, 'a whole number')
end

local fields = redis.call('HMGET', ENTRY, 'v', 'cursor', 'born', 'since', 'fence', 'ttl', 'last_done',
  'max_attempts', 'refused', 'c:done', 'c:failed')
if number_field('v', fields[1], VERSION) > VERSION then
  return {'newer', fields[1]}
end
-- Those of later verbs too: a window whose end can't be counted isn't to begin, again and again.
for position, name in pairs({[8] = 'max_attempts', [9] = 'refused', [10] = 'c:done', [11] = 'c:failed'}) do
  number_field(name, fields[position])
end
for position, name in pairs({[2] = 'cursor', [3] = 'born', [4] = 'since', [7] = 'last_done'}) do
  if fields[position] and not is_instant(fields[position]) then
    bad_field(name, fields[position], 'an instant')
  end
end
local entry = {
  cursor = fields[2], born = fields[3], since = fields[4], last_done = fields[7],
  fence = number_field('fence', fields[5], 0), ttl = math.max(number_field('ttl', fields[6], 30 * DAY), 1),
  max_attempts = number_field('max_attempts', fields[8], math.huge),
}

-- The cursor has passed this window: whether it still owes an outcome is for the open zset to say.
local function passed()
  return entry.cursor and entry.born and entry.born < START and START <= entry.cursor
end

local function is_open()
  return redis.call('ZSCORE', OPEN, MEMBER) ~= false
end

-- What the run key says: its kind (nil, 'run', 'wait' or 'done'), the owner, and the fence, retry number or outcome.
local function run_state(key)
  local value = redis.call('GET', key or RUN)
  if not value then
    return nil
  end
  local owner, fence = string.match(value, '^run:(.*):(%d+)$')
  if owner and whole(fence) then
    return 'run', owner, tonumber(fence)
  end
  local retry
  retry, owner = string.match(value, '^wait:(%d+):(.*)$')
  if retry and whole(retry) then
    return 'wait', owner, tonumber(retry)
  end
  local outcome
  outcome, owner = string.match(value, '^done:(%a+):(.*)$')
  if outcome then
    return 'done', owner, outcome
  end
  error('BADDATA ' .. (key or RUN) .. ' is neither run:, wait: nor done:')
end

-- A hash that was lost while its windows are open is made again by whoever comes first; it expires all the same.
local function keep_entry()
  if not entry.cursor then
    redis.call('PEXPIRE', ENTRY, entry.ttl)
  end
end

-- An open window's account. `turn` changes with each claim, take, begin and hand over, so that a late confirm
-- is seen to be late. `released` says whether its last owner gave it back, and for what. `taken` is 1 from a take
-- until its confirm.
local NUMBERS = {
  'attempts', 'fence', 'retry', 'turn', 'publishes', 'claimed', 'expires', 'backfill', 'released', 'taken',
}

-- Values of `released`. HELD too before the first begin, and where an execution died: nobody gave it back.
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
  local text = redis.call('HGET', ENTRY, 'w:' .. (start or START))
  if not text then
    return new_window('-', 0)
  end
  local window, position = {}, 0
  for word in string.gmatch(text, '%S+') do
    position = position + 1
    if position <= #NUMBERS then
      window[NUMBERS[position]] = whole(word)
    elseif position == #NUMBERS + 1 then
      window.owner = word
    else
      window.beat = word
    end
  end
  for _, name in ipairs(NUMBERS) do
    if not window[name] or position ~= #NUMBERS + 2 then
      error('BADDATA ' .. ENTRY .. ' field w:' .. (start or START) .. ' is no account of a window')
    end
  end
  return window
end

local function write_window(window, deadline, start, member)
  local words = {}
  for position, name in ipairs(NUMBERS) do
    words[position] = int(window[name])
  end
  words[#words + 1] = window.owner
  words[#words + 1] = window.beat
  redis.call('HSET', ENTRY, 'w:' .. (start or START), table.concat(words, ' '))
  keep_entry()
  redis.call('ZADD', OPEN, int(deadline), member or MEMBER)
  -- PTTL -1: the zset is new, -2 can't be. It lives as long as the longest-lived entry that it speaks of.
  if redis.call('PTTL', OPEN) < entry.ttl then
    redis.call('PEXPIRE', OPEN, entry.ttl)
  end
end

-- Before an answer that somebody acts on and that only repeats an earlier one: WAIT waits for the writes of its own
-- connection alone, and the earlier answer may have come, or been lost, on another.
local function write_again()
  redis.call('PEXPIRE', ENTRY, entry.ttl)
end

-- A script looks at all that it will write to, then writes: one that stops halfway would count twice.
local function look_at_history()
  if HISTORY_SIZE > 0 then
    redis.call('LLEN', HISTORY)
  end
end

local function look_at_count(name)
  number_field(name, redis.call('HGET', ENTRY, name), 0)
end

-- Windows of the present definition are counted for the conservation law, all others apart.
local function count(outcome, number, apart)
  if number > 0 then
    redis.call('HINCRBY', ENTRY, (apart and 'x:' or 'c:') .. outcome, number)
    keep_entry()
  end
end

local function remember(text)
  if HISTORY_SIZE > 0 then
    redis.call('LPUSH', HISTORY, text)
    redis.call('LTRIM', HISTORY, 0, HISTORY_SIZE - 1)
    redis.call('PEXPIRE', HISTORY, entry.ttl)
  end
end

-- A done marker that alone decides lives for the retention, one beside the cursor for the marker_ttl.
local function mark_done(owner, outcome, alone)
  redis.call('SET', RUN, 'done:' .. outcome .. ':' .. owner, 'PX', alone and RETENTION or MARKER_TTL)
end

-- History: start, outcome, closed at, claimed at, last fence (about when it began), attempts, beat, owner.
local function close_window(window, outcome, owner)
  local apart = window.backfill == 1 or not passed() or START <= (entry.since or entry.born)
  look_at_history()
  look_at_count((apart and 'x:' or 'c:') .. outcome)
  redis.call('ZREM', OPEN, MEMBER)
  redis.call('HDEL', ENTRY, 'w:' .. START)
  mark_done(owner, outcome, not passed())
  count(outcome, 1, apart)
  if outcome == 'done' and START > (entry.last_done or '') then
    redis.call('HSET', ENTRY, 'last_done', START)
  end
  remember(table.concat({
    START, outcome, int(NOW), int(window.claimed), int(window.fence), int(window.attempts), window.beat, owner,
  }, ' '))
end

-- The limits that end an open window that nobody runs. Returns its outcome, or nil where it may go on.
local function limit_reached(window)
  if window.attempts >= entry.max_attempts then
    return 'abandoned'
  end
  if window.attempts >= 1 and redis.call('HGET', ENTRY, 'recover') == '0' and window.released == HELD then
    return 'dropped'
  end
  if window.expires > 0 and NOW > window.expires then
    return 'expired'
  end
  return nil
end

-- Any verb that meets an open window whose run key says done closes it as that says. Returns the run state.
local function settle()
  local kind, owner, number = run_state()
  if kind == 'done' and is_open() then
    close_window(read_window(), number, owner)
  end
  return kind, owner, number
end

-- Past the entry's grace, what never began is missed: a weekend's queue doesn't all run on Monday.
local function too_late(window, start_ms)
  local grace = redis.call('HGET', ENTRY, 'grace')
  if not grace or grace == '-1' then
    return nil
  end
  grace = number_field('grace', grace)
  if window.fence == 0 and window.backfill == 0 and NOW > start_ms + grace then
    return 'missed'
  end
  return nil
end

-- A caller that doesn't know the fence, '0', may be the delivery of which the holder is an execution.
local function is_owner(holder, owner, fence)
  return holder == owner or fence == '0' and string.sub(holder, 1, #owner + 1) == owner .. ':'
end

-- Whether `owner` still has the window: 'run', or 'wait' and the retry that it handed over to; nil where it is
-- stale. One whose lease ran out has it again as long as nobody began since. `fence` is '0' where the caller doesn't
-- know it: then only the run key counts.
local function hold(owner, fence, tracked)
  local kind, holder, number = run_state()
  if kind == 'run' then
    return is_owner(holder, owner, fence) and 'run' or nil
  end
  if kind == 'wait' then
    if is_owner(holder, owner, fence) then
      return 'wait', number
    end
    return nil
  end
  if kind == 'done' then
    return nil
  end
  if is_open() then
    local window = read_window()
    return window.owner == owner and int(window.fence) == fence and window.released == HELD and 'run' or nil
  end
  -- Nobody has it and nothing is known of it: where the run key alone decides, its last owner has it again.
  return fence ~= '0' and (not tracked or not passed()) and 'run' or nil
end
