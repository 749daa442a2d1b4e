-- Where windows of an entry run one by one, one that has begun before goes first; see line.lua. With overlap skip, a new
-- window without the turn is skipped. With a buffer it waits: buffer_one keeps the newest new window and skips the rest;
-- buffer_all keeps MOST_WAITING. NO_SLOT names a limit without a free slot: the window waits for one.

-- include: line, one_by_one
-- takes: no_slot

-- So many windows of an entry wait at most, of those that haven't begun: further ones are skipped. As Temporal has it.
local MOST_WAITING = 1000

-- buffer_one: this window would wait too. Returns the waiting new windows to skip; and whether this one is skipped itself,
-- and not they, since one of them is newer. Spares `first`, which is next, and windows whose message is out.
local function passed_over(first)
  local over = {}
  for _, each in ipairs(read_line()) do
    if each.state == 'waits_turn' and is_new(each) and each.message == 'none' and each.start ~= first then
      over[#over + 1] = each -- the newest is the last
    end
  end
  return over, over[1] and over[#over].start > START
end

-- `window` is nil where the window is not open.
local function admission_before_begin(window)
  local first = window and one_by_one and waits_for(window)
  local waits = {state = 'waits_slot', first = '', over = {}, limit = NO_SLOT, in_line = one_by_one}
  if not first then
    return NO_SLOT ~= '' and waits or nil
  end
  waits.state, waits.first = 'waits_turn', first
  if not is_new(window) then
    return waits
  end
  local itself = overlap == 'skip'
  if overlap == 'buffer_one' then
    waits.over, itself = passed_over(first)
  elseif overlap == 'buffer_all' and window.state == 'plain' and #read_line() >= MOST_WAITING then
    return {outcome = 'skipped', why = MOST_WAITING .. ' windows of its entry wait already'}
  elseif overlap ~= 'skip' and overlap ~= 'buffer_all' then
    bad_field('overlap', overlap, 'a policy that this version knows')
  end
  return itself and {outcome = 'skipped'} or waits
end
