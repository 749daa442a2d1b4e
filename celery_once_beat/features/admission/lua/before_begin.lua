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

local function wait(state, first, over)
  return {state = state, first = first, over = over or {}, limit = NO_SLOT, in_line = one_by_one()}
end

-- `window` is nil where the window is not open.
local function admission_before_begin(window)
  local first = window and one_by_one() and waits_for(window)
  if not first then
    return NO_SLOT ~= '' and wait('waits_slot', '') or nil
  end
  if not is_new(window) then
    return wait('waits_turn', first)
  end
  if overlap() == 'skip' then
    return {outcome = 'skipped'}
  end
  if overlap() == 'buffer_all' then
    if window.state == 'held' and #read_line() >= MOST_WAITING then
      return {outcome = 'skipped', why = MOST_WAITING .. ' windows of its entry wait already'}
    end
    return wait('waits_turn', first)
  end
  if overlap() ~= 'buffer_one' then
    bad_field('overlap', overlap(), 'a policy that this version knows')
  end
  local over, itself = passed_over(first)
  return itself and {outcome = 'skipped'} or wait('waits_turn', first, over)
end
