-- include: line

-- `gone`: the window's message is lost to the workers. Until it is taken it keeps no other from running.
local function admission_on_release(gone)
  if gone and last_that_began() == START then
    redis.call('HDEL', ENTRY, 'running')
  end
  call_next()
end
