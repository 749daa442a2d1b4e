-- include: line, one_by_one

local function admission_on_begin()
  if one_by_one then
    redis.call('HSET', ENTRY, 'running', START)
    if entry.waits and not read_line()[1] then
      no_line()
    end
  end
  return one_by_one -- others wait for its end
end
