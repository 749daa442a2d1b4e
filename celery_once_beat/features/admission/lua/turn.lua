-- Who has the turn of an entry whose windows run one by one.

-- include: window

local function last_that_began()
  return instant_field('running', redis.call('HGET', ENTRY, 'running') or nil)
end

-- Whether the window has begun, and neither waits nor is to run again. An execution has it, or its retry does, if its
-- deadline lies ahead, too.
local function is_taken_up(window)
  return window.fence > 0 and (window.state == 'held' or window.state == 'retry')
end

-- Another window of the entry and its deadline; nil where it isn't open.
local function another(start)
  local account = start and start ~= START and redis.call('HGET', ENTRY, 'w:' .. start)
  if not account then
    return nil
  end
  return read_account(account, start), tonumber(redis.call('ZSCORE', OPEN, member_of(start)) or 0)
end
