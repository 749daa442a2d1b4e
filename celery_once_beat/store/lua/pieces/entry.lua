-- The hash of an entry. Instants are canonical texts of fixed width, so text order is time order; durations are ms.
--
--   v             version of the protocol that wrote it; absent: 1
--   cursor        latest claimed start   born: the cursor that the hash was made with
--   since         the cursor from which the present definition counts
--   ttl           how long the hash lives after the last contact
--   fence         the largest that a begin was given
--   last_done     start of the latest window that was done; absent: none
--   fingerprint   the definition in force; '-' where all beats dropped the entry from their schedules
--   loaders       the newest few beats that loaded it, and what each loaded; see loaders.lua
--   paused        1; absent: not paused
--   spent         of a disabled one-off: its since, the time of its last edit, and from where it counts again; see spent
--   max_attempts, recover (1 or 0), grace (-1: none)   limits of the definition in force
--   again (ms; 0: never, -1: as the task says), overlap (allow, skip, -: as the task says)   the same
--   refused       how many copies begin refused
--   running       start of the last window that began, or that was taken after it had begun; only with overlap skip
--   waiting       '<start> <server ms>': the oldest window that found another running and is to run after it, and when it
--                 was last seen to wait; see overlap.lua
--   trying        '<start> <number> <server ms>'; see unconsumed.lua
--   w:<start>     the account of an open window; see window.lua
--   c:<outcome>   how many windows of the present definition ended so   x:<outcome>: of all others
--
-- Every verb of an entry reads its version first. It raises NEWER where a newer version wrote the hash, and BADDATA
-- where a key holds what this package didn't write. Nothing has been changed then.

-- The hash's v and cursor, then the fields that are asked for: in one command, since each costs more than its fields.
local function read_fields(...)
  local fields = redis.call('HMGET', ENTRY, 'v', 'cursor', ...)
  if number_field('v', fields[1], VERSION) > VERSION then
    error('NEWER ' .. fields[1])
  end
  instant_field('cursor', fields[2])
  return fields
end

-- What any verb of a window looks at.
local hash = read_fields('born', 'since', 'fence', 'ttl', 'last_done', 'max_attempts', 'refused', 'c:done', 'c:failed',
  'paused', 'fingerprint', 'recover', 'grace', 'again', 'overlap', 'w:' .. START)
local entry = {
  cursor = hash[2], born = instant_field('born', hash[3]),
  since = hash[4] == hash[3] and hash[4] or instant_field('since', hash[4]),
  last_done = instant_field('last_done', hash[7]),
  fence = number_field('fence', hash[5], 0), ttl = math.max(number_field('ttl', hash[6], 30 * DAY), 1),
  max_attempts = number_field('max_attempts', hash[8], math.huge),
  paused = hash[12], fingerprint = hash[13], recover = hash[14], grace = hash[15], again = hash[16],
  overlap = hash[17],
}
-- Validate now for later verbs: if the outcome couldn't be counted, the window would restart for ever.
number_field('refused', hash[9])
local counted = {['c:done'] = number_field('c:done', hash[10], 0), ['c:failed'] = number_field('c:failed', hash[11], 0)}
local account = hash[18]

-- The cursor has passed this window, so the open zset alone says whether it still owes an outcome.
local function passed()
  return entry.cursor and entry.born and entry.born < START and START <= entry.cursor
end

-- If the hash was lost while its windows are open, the first verb that writes makes it again. It expires all the same.
local function keep_entry()
  if not entry.cursor then
    redis.call('PEXPIRE', ENTRY, entry.ttl)
  end
end

-- A full server refuses a script's first write if that could need memory, and lets a script go on that has written.
-- What is there already must go on and end: that frees memory, and a lost lease costs a second execution. So a script
-- that changes what is there begins with a write that needs no memory: this one, DEL, or ZREM. An answer that repeats an
-- earlier one writes too: WAIT only waits for writes of its own connection, and the first answer may have come on another.
local function touch_entry()
  redis.call('PEXPIRE', ENTRY, entry.ttl)
end
