-- confirm: a beat reports whether the message of a window that it claimed or took went out. Sent again after it closed
-- the window, it answers the same.
--
-- PUBLISHED: sent; unsure, or not sent; impossible because of the task's arguments (after max_attempts such publishes the
-- window has failed); astray: without its headers, so that no worker will know the window, and it ends as untracked;
-- not_yet: the beat goes on publishing. QUEUE is where the message is, '-' where that isn't known.
--
-- returns {'failed'}      it could not be published max_attempts times, and is closed
--         {'untracked'}   it is closed as that
--         {'confirmed'}   the deadline has moved: to when a worker should have begun, doubling with each time
--                         that it is published again; near, if it has to be published again; or the claim is renewed
--         {'unchanged'}   it was begun, taken or closed since

-- include: entry, window

local window = read_window()
if window and (window.revision ~= REVISION or PUBLISHED == 'not_yet' and window.message == 'sent') then
  return {'unchanged'}
end
local end_as = PUBLISHED == 'impossible' and 'failed' or PUBLISHED == 'astray' and 'untracked'
local ends = end_as == 'untracked' or window and end_as and window.publishes >= entry.max_attempts
if window and not ends then -- the common case; see begin
  touch_entry()
  if PUBLISHED == 'not_yet' then
    set_deadline(NOW + CLAIM_LEASE)
    return {'confirmed'}
  end
  local doubled = 2 ^ math.min(window.publishes - 1, 30)
  local delay = math.min(1000 * doubled, PUBLISH_TIMEOUT)
  if PUBLISHED == 'sent' then
    delay = math.min(START_TIMEOUT * doubled, math.max(DAY, START_TIMEOUT))
    if window.state == 'waits_turn' then
      delay = math.min(delay, PATIENCE * doubled) -- others wait for it
    end
  end
  window.message, window.queue = PUBLISHED == 'sent' and 'sent' or 'none', QUEUE
  write_window(window, NOW + delay)
  return {'confirmed'}
end

-- include: ends, run

local kind, owner, outcome = run_state()
local closer = '/' .. int(REVISION) -- ends the owner in the marker: a repetition knows its own, since revisions differ
if window then
  close_window(window, end_as, window.beat .. closer)
elseif kind ~= 'done' or outcome ~= end_as or string.sub(owner, -#closer) ~= closer then
  return {'unchanged'}
end -- else the reply to this one was lost
return {end_as}
