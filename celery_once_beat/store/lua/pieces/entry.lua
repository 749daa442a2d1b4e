-- The hash of an entry. Instants are canonical texts of fixed width, so text order is time order; durations are ms.
--
--   v             version of the protocol that wrote it; absent: 1
--   cursor        latest claimed start   born: the cursor that the hash was made with
--   since         the cursor from which the present definition counts
--   ttl           how long the hash lives after the last contact
--   fence         the largest that a begin was given
--   attempts      of a key: '<start> <number>', how often its window began that began last
--   last_done     start of the latest window that was done; absent: none
--   fingerprint   the definition in force; '-' where all beats dropped the entry from their schedules
--   loaders       the newest few beats that loaded it, and what each loaded; see loaders.lua
--   paused        1; absent: not paused   paused_words: since when, who paused it and why, JSON, for people
--   row           the key of the database's row that it is made of; '-': that has another name now; absent: it is of no row
--   spent         of a disabled one-off: its since, the time of its last edit, and from where it counts again; see spent
--   max_attempts, ...   each option of options.py that has a `load`, of the definition in force, times in ms; -: not set,
--                 or set by the task
--   waits         1: windows wait in line for their turn, or did a moment ago; see features/admission
--   limit         of which limit a window waited for a slot last; for people
--   refused       how many copies begin refused
--   running       start of the last window that began, or that was taken after it had begun; only where windows of the
--                 entry run one by one
--   discarded     '<server ms> <worker>': the last worker that didn't know the task; for people
--   times         histograms; see features/times
--   streak        '<number> <start>...': the windows that failed in a row; only where so many pause it
--   late          how many windows were reported as late
--   w:<start>     the account of an open window; see window.lua
--   m:<start>     the message of an open window of a child, JSON; see features/keyed
--   c:<outcome>   how many windows of the present definition ended so   x:<outcome>: of all others
--
-- Names in capitals are keys, arguments and constants: store/scripts.py declares them. A script that includes this reads its
-- entry first, before anything is written: what its pieces and hooks name in their lines `-- fields: …`, of which some are
-- numbers; false or nil if absent. `account` is the window's. `ttl` is how long the hash lives after this, ms; `max_attempts`
-- how often a window may begin and die. Instants and numbers are checked: if an outcome couldn't be counted, the window
-- would restart for ever.

-- include: fields
-- fields: born, since, last_done, paused, fingerprint, recover
-- numbers: fence, ttl, max_attempts, refused, grace, retry_failed_after, c:done, c:failed

local entry = NAMED(number_field, read_fields('w:' .. START, unpack(FIELDS)))
instant_field('born', entry.born)
if entry.since ~= entry.born then
  instant_field('since', entry.since)
end
instant_field('last_done', entry.last_done)
entry.fence, entry.ttl = entry.fence or 0, math.max(entry.ttl or 30 * DAY, 1)
entry.max_attempts = entry.max_attempts or math.huge

-- A key beside the hash lives as long, and up to a day longer, so not every write has to renew it. OPEN lives as long as
-- its longest-lived entry.
local function keep(key)
  if redis.call('PTTL', key) < entry.ttl then -- -1: it is new
    redis.call('PEXPIRE', key, entry.ttl + DAY)
  end
end

-- The cursor has passed this window, so the open zset alone decides whether it still owes an outcome.
local function is_behind_cursor()
  return entry.cursor and entry.born and entry.born < START and START <= entry.cursor
end

-- A full server refuses a script's first write if it may need memory, but lets a script continue that has written.
-- Running windows must be able to end: that frees memory, and a lost lease costs a second execution. So such a script
-- first writes something that needs none: this, DEL, ZREM or LTRIM. A repeated answer writes too: WAIT counts only
-- its own connection's writes.
local function touch_entry()
  redis.call('PEXPIRE', ENTRY, entry.ttl)
end

-- If the hash was lost while windows are open, the first write makes it again. Give it an expiry.
local function keep_entry()
  if not entry.cursor then
    touch_entry()
  end
end
