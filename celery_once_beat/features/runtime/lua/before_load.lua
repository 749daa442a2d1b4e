-- DEFINITION is the hash of a definition that was set at run time; the beat's own schedule has none.

-- include: values

local function runtime_before_load(cursor)
  if not DEFINITION[1] then
    return nil
  end
  local mark = string.match(FINGERPRINT, '^[^~]*')
  local set = redis.call('HMGET', DEFINITION[1], 'mark', 'first', 'loaded', 'paused', 'deleted')
  local function version(of)
    return tonumber(string.match(of or '', '^def:(%d+):') or 0)
  end
  return {
    mark = mark, in_force = set[1] == mark, paused = set[4] == '1',
    replaced_by = 0 < version(mark) and version(mark) < version(set[1]) and set[5] ~= '1' and set[1],
    counts_from = not cursor and not set[3] and instant_field('first', set[2]) or '',
  }
end
