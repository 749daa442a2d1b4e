-- include: line

-- `gone`: the window's message is lost to the workers. Until it is taken it keeps no other from running.
local function admission_on_release(gone)
  if gone and last_that_began() == START then
    redis.call('HDEL', ENTRY, 'running')
  end
  pcall(call_next) -- what is foreign in another window is that one's trouble: this one's end is written
end
