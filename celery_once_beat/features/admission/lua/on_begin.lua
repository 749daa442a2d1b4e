-- include: line, one_by_one

local function admission_on_begin()
  if not one_by_one then
    return false
  end
  redis.call('HSET', ENTRY, 'running', START)
  if entry.waits and not read_line()[1] then
    no_line()
  end
  return true -- others wait for its end
end
