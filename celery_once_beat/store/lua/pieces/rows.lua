-- The database's rows that entries are made of. ROW_KEY, a string, has for one row in one shard
--
--   '- <name>'                   the entry of this shard that is made of it
--   '<cursor> <when> <pause>'    what it had in this shard when it left its name there; pause as PAUSE of load
--
-- A row that gets another name brings along what it had, in whichever shard. It leaves its old name first: so a beat that
-- dies in between loses nothing. Of several that are left over, the one with the latest cursor counts.
--
-- pcall, since the key of a row that another one displaces isn't among the script's. It is in their slot; where it may not be
-- written, that row begins anew.

-- include: entries, instants

-- The entry isn't any more that of the row with this key. `cursor`, `paused` and `words` are fields of its hash.
local function put_aside(row_key, cursor, paused, words)
  if cursor and redis.pcall('GET', row_key) == '- ' .. name_of_entry() then
    local pause = paused == '1' and (words or '{}') or '-'
    redis.pcall('SET', row_key, table.concat({cursor, instant(NOW, 0), pause}, ' '), 'PX', 30 * DAY)
  end
end
