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
--   fingerprint   the definition in force; '-' where all beats dropped the entry from their schedules
--   loaders       which beats loaded which, the newest few of them; see loaders
--   paused        1; absent: not paused
--   spent         of a one-off that was disabled: since, when it was edited last, from where it counts again; see spent
--   max_attempts, recover (1 or 0), grace (-1: none)   the limits of the definition in force
--   again (ms; 0: never, -1: as the task says), overlap (allow, skip, -: as the task says)   the same
--   refused       how many copies begin refused
--   running       start of the last window that began, or was taken after it had; only where windows are skipped while
--                 another runs
--   waiting       '<start> <server ms>': the oldest window that has begun before, or was ordered, and found another running;
--                 when it was last seen to wait
--   trying        '<start> <number> <server ms>': of the windows that were published and never began, the one that is tried
--                 again; how many more may be; when the last of those that are put off asks again
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
-- digits overflows elsewhere. Clients send durations of at most 1e14 ms and retry numbers up to 1e9, so that every sum
-- that is written can be read again.
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

local function instant_field(name, value)
  return value and (is_instant(value) and value or bad_field(name, value, 'an instant'))
end

-- The number in a field of the entry hash, or `default` where there is none.
local function number_field(name, value, default)
  if not value then
    return default
  end
  return whole(value) or bad_field(name, value, 'a whole number')
end

-- All that any verb of a window looks at, in one command: each costs more than the fields that it reads.
local fields = redis.call('HMGET', ENTRY, 'v', 'cursor', 'born', 'since', 'fence', 'ttl', 'last_done', 'max_attempts',
  'refused', 'c:done', 'c:failed', 'paused', 'fingerprint', 'recover', 'grace', 'again', 'overlap', 'w:' .. START)
if number_field('v', fields[1], VERSION) > VERSION then
  return {'newer', fields[1]}
end
local entry = {
  cursor = instant_field('cursor', fields[2]), born = instant_field('born', fields[3]),
  since = fields[4] == fields[3] and fields[4] or instant_field('since', fields[4]),
  last_done = instant_field('last_done', fields[7]),
  fence = number_field('fence', fields[5], 0), ttl = math.max(number_field('ttl', fields[6], 30 * DAY), 1),
  max_attempts = number_field('max_attempts', fields[8], math.huge),
  paused = fields[12], fingerprint = fields[13], recover = fields[14], grace = fields[15], again = fields[16],
  overlap = fields[17],
}
-- Read for later verbs too: a window whose end can't be counted isn't to begin, again and again.
number_field('refused', fields[9])
local counted = {['c:done'] = number_field('c:done', fields[10], 0), ['c:failed'] = number_field('c:failed', fields[11], 0)}
local ACCOUNT = fields[18]

-- The cursor has passed this window: whether it still owes an outcome is for the open zset to say.
local function passed()
  return entry.cursor and entry.born and entry.born < START and START <= entry.cursor
end

local function is_open()
  return redis.call('ZSCORE', OPEN, MEMBER) ~= false
end

-- The retry number in the run key of a key's window that is to run again: one that no message has.
local NO_RETRY = '999999999999999'

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
-- until its confirm, and SENT once its message went out; 0: not yet, or an older version confirmed it.
local NUMBERS = {
  'attempts', 'fence', 'retry', 'turn', 'publishes', 'claimed', 'expires', 'backfill', 'released', 'taken',
}

local SENT = 2
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
  local text
  if start then
    text = redis.call('HGET', ENTRY, 'w:' .. start)
  else
    text = ACCOUNT
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

-- It lives as long as the longest-lived entry that it speaks of, and a day longer, so that not each write renews it.
local function keep_open()
  -- PTTL -1: the zset is new, -2 can't be.
  if redis.call('PTTL', OPEN) < entry.ttl then
    redis.call('PEXPIRE', OPEN, entry.ttl + DAY)
  end
end

-- Beside the account, `...` are further fields of the entry hash and their values.
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

-- A server that is full refuses a script's first write where that could need memory, and lets one go on that has
-- written. What is there already may always go on and end: that frees memory, and a lease that is lost costs a second
-- execution. So a script that changes what is there begins with a write that needs no memory: this one, DEL, ZREM. It
-- also stands before an answer that only repeats an earlier one, and that somebody acts on: WAIT waits for the writes of
-- its own connection alone, and the earlier answer may have come, or been lost, on another.
local function touch_entry()
  redis.call('PEXPIRE', ENTRY, entry.ttl)
end

-- A script looks at all that it will write to, then writes: one that stops halfway would count twice.
local function look_at_history()
  if HISTORY_SIZE > 0 then
    redis.call('LLEN', HISTORY)
  end
end

local function look_at_count(name)
  counted[name] = counted[name] or number_field(name, redis.call('HGET', ENTRY, name), 0)
end

-- Windows of the present definition are counted for the conservation law (c:), all others apart (x:). Beside it, `...`
-- are further fields of the entry hash and their values.
local function count(name, number, ...)
  counted[name] = counted[name] + number
  redis.call('HSET', ENTRY, name, int(counted[name]), ...)
  keep_entry()
end

-- There are many, so they are short: start without what every start ends with; outcome; when it was claimed; ms after
-- that, when its last execution began (0: none, or at once) and when it was closed; attempts, or how many windows were
-- missed; host and process of the beat, of a window that was ordered host:order; host of the last owner.
local function remember(start, outcome, claimed, begun, closed, number, beat, owner)
  if HISTORY_SIZE > 0 then
    local text = string.format('%s %s %.0f %.0f %.0f %.0f %s %s', string.gsub(start, '%.?0*Z$', ''), outcome, claimed,
      math.max(begun, 0), math.max(closed, 0), number, string.match(beat, '^[^:]*:?[^:]*'), string.match(owner, '^[^:/]*'))
    if redis.call('LPUSH', HISTORY, text) > HISTORY_SIZE then
      redis.call('LTRIM', HISTORY, 0, HISTORY_SIZE - 1)
    end
    redis.call('PEXPIRE', HISTORY, entry.ttl)
  end
end

-- A done marker that alone decides lives for the retention, one beside the cursor for the marker_ttl.
local function mark_done(owner, outcome, alone)
  redis.call('DEL', RUN) -- frees memory first
  redis.call('SET', RUN, 'done:' .. outcome .. ':' .. owner, 'PX', alone and RETENTION or MARKER_TTL)
end

local function close_window(window, outcome, owner)
  local apart = window.backfill == 1 or not passed() or START <= (entry.since or entry.born)
  local name = (apart and 'x:' or 'c:') .. outcome
  look_at_history()
  look_at_count(name)
  -- First what frees memory: a server that is full lets a script that has written go on.
  redis.call('ZREM', OPEN, MEMBER)
  redis.call('HDEL', ENTRY, 'w:' .. START)
  mark_done(owner, outcome, not passed())
  if outcome == 'done' and START > (entry.last_done or '') then
    count(name, 1, 'last_done', START)
  else
    count(name, 1)
  end
  local by = window.backfill == 1 and string.match(window.beat, '^[^:]*') .. ':order' or window.beat
  remember(START, outcome, window.claimed, window.fence - window.claimed, NOW - window.claimed, window.attempts, by,
    owner)
end

-- The limits that end an open window that nobody runs. Returns its outcome, or nil where it may go on.
local function limit_reached(window)
  if window.attempts >= entry.max_attempts then
    return 'abandoned'
  end
  if window.attempts >= 1 and entry.recover == '0' and window.released == HELD then
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
  if not entry.grace or entry.grace == '-1' then
    return nil
  end
  local grace = number_field('grace', entry.grace)
  if window.fence == 0 and window.backfill == 0 and NOW > start_ms + grace then
    return 'missed'
  end
  return nil
end

-- A caller that doesn't know the fence, '0', may be the delivery of which the holder is an execution.
local function is_owner(holder, owner, fence)
  return holder == owner or fence == '0' and string.sub(holder, 1, #owner + 1) == owner .. ':'
end

-- How long a window that has begun before, and is to run again, keeps newer ones of its entry from beginning, where windows
-- don't overlap: by then a beat has taken it, or asked for it again. One that nobody asks for blocks nobody for ever.
local PATIENCE = 60000

-- The account and the deadline of another window of the entry; nil where it isn't open.
local function another(start)
  if not start or start == START or not redis.call('HGET', ENTRY, 'w:' .. start) then
    return nil
  end
  return read_window(start), tonumber(redis.call('ZSCORE', OPEN, string.sub(MEMBER, 1, -(#START + 1)) .. start) or 0)
end

local function last_that_began()
  return instant_field('running', redis.call('HGET', ENTRY, 'running') or nil)
end

local function last_that_waits()
  local text = redis.call('HGET', ENTRY, 'waiting')
  if not text then
    return nil
  end
  local start, at = string.match(text, '^(%S+) (%d+)$')
  if not start or not is_instant(start) or not whole(at) then
    bad_field('waiting', text, 'an instant and a time')
  end
  local window = math.abs(NOW - tonumber(at)) < PATIENCE and redis.call('HGET', ENTRY, 'w:' .. start)
  return window and start or nil
end

-- Of an entry whose windows don't overlap: the deadline of the other window that is being executed, or waits for its
-- retry, nil where there is none. It is the last that began; its deadline says that it isn't dead.
local function another_runs()
  local window, deadline = another(last_that_began())
  return window and window.fence > 0 and window.released <= TO_RETRY and deadline > NOW and deadline or nil
end

-- Whether another window, which has begun before or was ordered, is to run again before any that hasn't: it died, or
-- waits for one that runs.
local function another_goes_first()
  local window, deadline = another(last_that_began())
  if window and window.fence > 0 and window.released <= TO_RETRY and deadline + PATIENCE > NOW then
    return not limit_reached(window)
  end
  window = another(last_that_waits())
  return window and not limit_reached(window)
end

-- This window waits for another of its entry, and newer ones wait for it.
local function wait_for_turn()
  local first = last_that_waits()
  if not first or START <= first then
    redis.call('HSET', ENTRY, 'waiting', START .. ' ' .. int(NOW))
  end
end

-- Nobody may consume the queue of windows that were published and never began, and then each copy only makes it longer. So
-- of an entry one of them is tried again at a time, and as more of them begin, more are: twice as many each time. All others
-- are put off, without a message. The most that may be tried at once:
local MOST_TRIED = 100

local function read_trying()
  local text = redis.call('HGET', ENTRY, 'trying')
  if not text then
    return nil
  end
  local start, more, last = string.match(text, '^(%S+) (%d+) (%d+)$')
  if not start or not is_instant(start) or not whole(more) or not whole(last) then
    bad_field('trying', text, 'an instant and two numbers')
  end
  return start, tonumber(more), tonumber(last)
end

local function trying(start, more, last)
  return string.format('%s %.0f %.0f', start, more, last)
end

-- When one that is put off asks again: after an eighth of its age, up to ten minutes.
local function asks_again(window)
  return NOW + math.min(math.max((NOW - window.claimed) / 8, MARGIN), 600000)
end

-- A copy of `window` has reached a worker, so somebody consumes its queue. Returns what is to be done about that once all
-- has been looked at: more of those that were put off are tried again, and the one that is needn't wait for its next step.
local function see_consumed(window)
  local start, more, last
  if window.fence == 0 then
    start, more, last = read_trying()
  end
  if not start then
    return function() end
  end
  -- pcall: an account that can't be read is its own window's trouble.
  local readable, first, deadline = pcall(another, start)
  return function()
    more = math.min(more + (window.publishes > 1 and 2 or 1), MOST_TRIED)
    redis.call('HSET', ENTRY, 'trying', trying(start, more, last))
    if readable and first and first.fence == 0 and deadline > asks_again(first) then
      redis.call('ZADD', OPEN, int(asks_again(first)), string.sub(MEMBER, 1, -(#START + 1)) .. start)
    end
  end
end

-- Whether `owner` still has the window: 'run', or 'wait' and the retry that it handed over to; nil where it is
-- stale. One whose lease ran out has it again as long as nobody began since: neither it nor, where windows don't
-- overlap, another of its entry that runs. `fence` is '0' where the caller doesn't
-- know it: then only the run key counts. The rest is what run_state() said.
local function hold(owner, fence, tracked, kind, holder, number)
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
    if window.owner ~= owner or int(window.fence) ~= fence or window.released ~= HELD or another_runs() then
      return nil
    end
    if redis.call('HGET', ENTRY, 'running') then
      touch_entry()
      redis.call('HSET', ENTRY, 'running', START) -- it may not be the last that began
    end
    return 'run'
  end
  -- Nobody has it and nothing is known of it: where the run key alone decides, its last owner has it again.
  return fence ~= '0' and (not tracked or not passed()) and 'run' or nil
end
