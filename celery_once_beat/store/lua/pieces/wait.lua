-- A window that may not begin yet waits without a message, until a script makes it overdue.

-- include: end_rules, window
-- hooks: on_wait

-- `verdict` has the state in which it waits; see the hook before_begin. The new revision voids a late confirm. If a rule
-- will end the window while it waits, it is overdue then.
local function start_waiting(window, verdict)
  window.revision, window.message, window.publishes, window.state = window.revision + 1, 'none', 0, verdict.state
  write_window(window, math.max(math.min(NOW + LONGEST_WAIT, ends_at(window) + 1), NOW + MARGIN))
  on_wait(window, verdict)
end
