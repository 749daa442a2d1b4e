-- A definition that people set at run time, and its changes. It doesn't expire, unless it was deleted.
--
-- DEF is a hash:
--
--   v         version of the protocol that wrote it
--   version   counts the changes of this name, also over a deletion
--   text      the definition, JSON
--   mark      the fingerprint with which beats load it: def:<version>:<request>; each set and each deletion makes a new one
--   since     when it was set, by the server: the instant from which it counts
--   first     when it was made: from there it is owed, if no beat has loaded any version of it yet; absent: it has been paused
--             since it was made, so it owes nothing when it is resumed
--   at        when it changed last   words: who changed it and why, JSON
--   paused    1; absent: not paused
--   loaded    1; absent: no beat has loaded it
--   metadata  what users keep with it, JSON; absent: nothing
--   deleted   1: it is kept until its open windows have their outcome, DELETED_TTL
--
-- CHANGES lists the last changes, newest first: version, time, the id of the request, what it was, who and why (JSON), and the
-- text that it put out of force; lines, since JSON has no newline.
--
-- DEFS holds the names of a shard, each with the number of its last change, and '' with the shard's last number. Numbers
-- grow. They are the server's time, ms, or one more than the last: so they grow on where that was lost. GONE holds deleted
-- names for GONE_TTL; a beat that didn't look for so long reads all names.

-- include: fields, in_force, instants, now, values

local DELETED_TTL = 30 * DAY
local GONE_TTL = 3600000
local MOST_CHANGES = 50

-- nil where there is none, and none was deleted of late.
local function read_definition()
  local fields = redis.call('HMGET', DEF, 'v', 'version', 'text', 'at', 'paused', 'deleted', 'first')
  if not fields[2] then
    return nil
  end
  if fields[1] ~= VERSION then
    error(whole(fields[1] or '') and 'NEWER ' .. fields[1] or 'BADDATA ' .. DEF .. ' has no version')
  end
  local version, at = whole(fields[2]) or bad_field('version', fields[2], 'a whole number', DEF), fields[4] or ''
  if not is_instant(at) then
    bad_field('at', at, 'an instant', DEF)
  end
  local there = fields[6] ~= '1'
  local paused, first = there and fields[5] == '1', there and fields[7]
  return {version = version, at = at, there = there, text = there and fields[3] or '', paused = paused, first = first}
end

-- What there was before this script; `there` if it isn't deleted. Of a deleted one only its version and time count.
local before = read_definition() or {version = 0, at = '', there = false, text = '', paused = false}
-- The entry's cursor before this script; nil if it has none. Whether a definition that is set is put in force: no living beat's
-- own schedule has the entry.
local cursor, in_force = unpack(read_fields('fingerprint'), 2)
local no_beats_own = in_force == '-' or was_set(in_force or '')

-- An answer that repeats an earlier one writes too: WAIT only waits for writes of its own connection.
local function touch_definition()
  redis.call('HSET', DEF, 'v', VERSION)
end

-- The version and the time of the change that this request made before: its reply was lost.
local function made_before()
  for _, record in ipairs(redis.call('LRANGE', CHANGES, 0, -1)) do
    local version, at, request = string.match(record, '^(%d+)\n(%S+)\n(%S+)\n')
    if request == REQUEST then
      touch_definition()
      return version, at
    end
  end
  return nil
end

-- The next change: its number, version, time and mark, as texts. The time is now, and not before the last change.
local function next_change()
  local last = tonumber(redis.call('ZSCORE', DEFS, '') or 0)
  if not (last >= 0 and last < TOO_LARGE) then
    error('BADDATA ' .. DEFS .. ' has no number of the last change')
  end
  local version, at = int(before.version + 1), instant(NOW, TIME[2] % 1000)
  return {
    number = int(math.max(NOW, last + 1)), version = version, at = before.at > at and before.at or at,
    mark = 'def:' .. version .. ':' .. REQUEST,
  }
end

-- What each change writes.
local function write_change(change, what, replaced)
  redis.call('HSET', DEF, 'v', VERSION, 'version', change.version, 'at', change.at, 'words', WORDS)
  redis.call('LPUSH', CHANGES, table.concat({change.version, change.at, REQUEST, what, WORDS, replaced}, '\n'))
  redis.call('LTRIM', CHANGES, 0, MOST_CHANGES - 1)
  redis.call('ZADD', DEFS, change.number, '')
end

-- From here on the entry's windows count by the definition with this mark.
local function put_in_force(mark)
  redis.call('HSET', ENTRY, 'fingerprint', mark, 'since', redis.call('HGET', ENTRY, 'cursor'))
  forget_counts()
end

-- Nothing is owed up to `at`: the cursor goes there, if it lies before, unless a living beat's own schedule has the entry.
local function count_from(at)
  redis.call('HSET', DEF, 'first', at)
  if cursor and at > cursor and no_beats_own then
    redis.call('HSET', ENTRY, 'cursor', at, 'since', at)
    forget_counts()
  end
end

-- The answer to a caller that expects another version: what there is.
local function conflict()
  return {'conflict', unpack(before.there and redis.call('HGETALL', DEF) or {})}
end
