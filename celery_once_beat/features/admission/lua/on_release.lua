-- include: line

-- `gone`: the window's message is lost to the workers. Until it is taken it keeps no other from running. One that waits has no
-- turn to give.
local function admission_on_release(gone)
  if not gone or last_that_began() == START then
    if gone then
      redis.call('HDEL', ENTRY, 'running')
    end
    pcall(call_next) -- what is foreign in another window is that one's trouble: this one's end is written
  end
end
