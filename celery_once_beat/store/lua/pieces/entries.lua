-- Descriptions of a shard's loaded entries, display only: ENTRIES has for each name '<fingerprint> <JSON>'
-- of the definition that was in force when it was loaded last; schedules/loaded.py writes and reads the JSON. It counts
-- while the entry's hash has that fingerprint. Entries that were set at run time are none of them: DEFS has those.
--
-- Display only: pcall, since a foreign key in its place must stop no beat.

-- include: values

-- The name is the end of ENTRY, '{7}:entry:<name>', and ENTRIES is '{7}:entries'.
local function name_of_entry()
  return string.sub(ENTRY, #ENTRIES)
end

local function list_entry(ttl)
  redis.pcall('HSET', ENTRIES, name_of_entry(), FINGERPRINT .. ' ' .. DEFINED)
  if redis.call('PTTL', ENTRIES) < ttl then
    redis.call('PEXPIRE', ENTRIES, ttl + DAY)
  end
end

-- A name whose entry has expired is found by and by: each call looks at one. Its key isn't among the script's, but in their
-- slot; who may not look (a proxy, a server that wants each key declared) leaves the name there.
local function unlist_expired()
  local name = redis.pcall('HRANDFIELD', ENTRIES)
  if type(name) == 'string' and redis.pcall('EXISTS', string.sub(ENTRY, 1, #ENTRIES - 1) .. name) == 0 then
    redis.pcall('HDEL', ENTRIES, name)
  end
end
