-- confirm: a beat says whether the message of a window that it claimed or took went out.
--
-- KEYS[1..4], ARGV[1..5] the window (prelude)
-- ARGV[6] turn, of the claim or take   ARGV[7] 1 published, 0 not, or perhaps not; -1 it can't be (its arguments,
-- say): after max_attempts such publishes the window has failed; 2 published, and no worker will know the window: it
-- ends as untracked
-- ARGV[8] start_timeout ms, with the message's own delay   ARGV[9] publish_timeout ms
--
-- returns {'failed'}      it could not be published max_attempts times, and is closed
--         {'untracked'}   it is closed as that
--         {'confirmed'}   the deadline has moved: to when a worker should have begun, doubling with each time
--                         that it is published again; or near, if it has to be published again
--         {'unchanged'}   it was begun, taken or closed since
--         {'newer', version}

local kind, owner, outcome = settle()
local ends = {['-1'] = 'failed', ['2'] = 'untracked'}
local end_as = ends[ARGV[7]]
if kind == 'done' and outcome == end_as and string.match(owner, '/(%d+)$') == ARGV[6] then
  return {end_as} -- the reply to this one was lost
end
if kind or not is_open() then
  return {'unchanged'}
end
local window = read_window()
if window.turn ~= tonumber(ARGV[6]) then
  return {'unchanged'}
end
if end_as == 'untracked' or end_as and window.publishes >= entry.max_attempts then
  -- The turn stands in the marker, so that a repetition knows its own: no two beats have the same one.
  close_window(window, end_as, window.beat .. '/' .. ARGV[6])
  return {end_as}
end
local doubled = 2 ^ math.min(math.max(window.publishes - 1, 0), 30)
local delay
if ARGV[7] == '1' then
  delay = math.min(ARGV[8] * doubled, math.max(DAY, ARGV[8]))
else
  delay = math.min(1000 * doubled, ARGV[9])
end
touch_entry()
window.taken = ARGV[7] == '1' and SENT or 0
write_window(window, NOW + delay)
return {'confirmed'}
