-- Who has the turn of an entry whose windows run one by one.

-- include: window

local function last_that_began()
  return instant_field('running', redis.call('HGET', ENTRY, 'running') or nil)
end

local function is_taken_up(window)
  return window.fence > 0 and (window.state == 'plain' or window.state == 'retry')
end

-- The window of the entry that began last, if it is another one, open, and neither waits nor is to run again; else nil. An
-- execution has it, or its retry does, if its deadline lies ahead, too.
local function another_taken_up()
  local start = last_that_began()
  local account = start and start ~= START and redis.call('HGET', ENTRY, 'w:' .. start)
  local window = account and find_window(start, account)
  return window and is_taken_up(window) and window
end
