-- claim: a beat takes the right to publish a window. A compare-and-set on the entry's cursor; the windows that it passes
-- over are accounted for in the same step. Sent again by the same beat, it answers as it did, with missed 0.
--
-- MODE: 'run'        the beat publishes it
--       'untracked'  the same, and it is closed at once, since no worker may close it
--       'pass'       it isn't run and counts as missed, also while the entry is paused
--       'cancel'     somebody orders that it isn't run: it counts as cancelled, also while the entry is paused
--
-- OWED_UNTIL is when the beat's definition was set at run time, '' for any other. Windows that start by then belong to
-- earlier definitions. The beat may claim them, also if its own definition has been replaced since.
--
-- returns {'claimed', revision, expires, missed}   publish it, unless it is passed over. revision: 0 if there is nothing to confirm.
--                                 expires: server ms, 0 for never. missed: how many windows were counted as missed
--         {'moved', cursor, missed}   it isn't this beat's; go on from there
--         {'paused'}   {'superseded'} (another definition is in force: load again)   {'unknown'} (no such hash: load again)

-- include: entry, in_force, run, window
-- hooks: on_claim

if not entry.cursor then
  return {'unknown'}
end
touch_entry()
local passes = MODE == 'pass' or MODE == 'cancel'
local moved = entry.cursor ~= FROM_CURSOR
if moved and START <= entry.cursor and redis.call('GET', CLAIM) == BEAT then
  -- The reply to this beat's claim was lost: it gets the same answer, to publish it only while nobody else has taken it.
  redis.call('PEXPIRE', CLAIM, MARKER_TTL)
  local window = read_window()
  if passes or MODE == 'untracked' and not window then
    return {'claimed', 0, '0', 0}
  end
  if MODE == 'run' and window and window.revision == 1 and window.beat == BEAT then
    return {'claimed', 1, window.expires, 0}
  end
end
if entry.paused == '1' and not passes then
  return {'paused'}
end
local owed = START <= OWED_UNTIL and was_set(FINGERPRINT) and was_set(entry.fingerprint or '-')
if entry.fingerprint ~= FINGERPRINT and not owed then
  return {'superseded'}
end
if moved then
  return {'moved', entry.cursor, 0}
end
if START <= FROM_CURSOR then
  return redis.error_reply('BADDATA claim of ' .. START .. ', which is not after the cursor ' .. FROM_CURSOR)
end

local function mark_claim()
  if string.sub(START, 1, 10) ~= string.sub(FROM_CURSOR, 1, 10) then
    keep(ENTRIES) -- only loads write it, so claims renew its expiry: with the first start of each day
  end
  return redis.call('SET', CLAIM, BEAT, 'NX', 'PX', MARKER_TTL)
end

local function open_window(mine, missed)
  local window = new_window(BEAT, EXPIRES and NOW + EXPIRES or 0)
  write_window(window, NOW + CLAIM_LEASE, 'cursor', START)
  on_claim()
  -- Another beat's marker is from before the store lost its cursor. That beat may publish the window. If it doesn't, the
  -- window is overdue after its deadline.
  return mine and {'claimed', window.revision, window.expires, missed} or {'moved', START, missed}
end
local itself_open = read_window()
if MODE == 'run' and MISSED_COUNT == 0 and not itself_open and not run_state() then -- the common case; see begin
  return open_window(mark_claim(), 0)
end

-- include: records
-- hooks: on_close

-- A window that is passed over counts as missed, unless it ran or runs although the cursor didn't know of it (the
-- store lost its last writes, or beats published without it), or a backfill opened it before its time.
-- All are read before the first write. Returns nil for a window that was missed; else what writes that it wasn't: the open
-- one stays open, an outcome is counted, or what its run key knows is opened.
local function writer_of_known(run_key, start)
  local window = find_window(start, redis.call('HGET', ENTRY, 'w:' .. start))
  if window then
    window.backfill = 0 -- the schedule has come to it: it counts as any other window
    return function()
      write_window(window, window.deadline)
    end
  end
  local kind, owner, detail = run_state(run_key)
  if kind == 'done' then
    check_count('c:' .. detail)
    return function()
      redis.call('HINCRBY', ENTRY, 'c:' .. detail, 1)
    end
  elseif kind then
    window = new_window(BEAT, 0, start)
    -- Not this beat's to publish: a claim that is repeated must not find revision 1.
    window.owner, window.publishes, window.revision = owner, 0, 2
    local left = math.max(redis.call('PTTL', run_key), 0)
    if kind == 'run' then
      window.attempts, window.fence = 1, detail
    else
      window.retry, window.state = detail, 'retry'
      -- Without an account the key lives RETENTION longer than its retry waits. Now there is one.
      left = math.max(left - RETENTION, MARGIN)
    end
    return function()
      if kind == 'wait' then
        redis.call('PEXPIRE', run_key, int(left))
      end
      write_window(window, NOW + left + MARGIN)
    end
  end
end

local place, missed, newest_missed, known, passed_over = 0, MISSED_COUNT, START, {}, {}
for start in string.gmatch(MISSED, '%S+') do
  place, newest_missed = place + 1, start
  local write = writer_of_known(MISSED_RUNS[place], start)
  if write then
    known[#known + 1], missed = write, missed - 1
  else
    passed_over[#passed_over + 1] = start
  end
end
local write_itself = not passes and writer_of_known(RUN, START)
if MODE == 'untracked' then
  check_count('c:untracked')
end
local outcome = MODE == 'cancel' and 'cancelled' or 'missed'
if missed > 0 then
  check_count('c:' .. outcome)
  local passed = new_window(BEAT, 0, newest_missed)
  passed.attempts = missed
  remember(passed, outcome, '-')
  redis.call('HINCRBY', ENTRY, 'c:' .. outcome, missed)
end
for _, start in ipairs(entry.paused == '1' and {} or passed_over) do -- of a paused entry nobody is alerted
  on_close(start, nil, 'missed')
end
local mine = mark_claim()
for _, write in ipairs(known) do
  write()
end
if MODE == 'run' and not write_itself then
  return open_window(mine, missed)
end
-- From here on nothing is published: the window is passed over, or untracked, or ran or runs already.
redis.call('HSET', ENTRY, 'cursor', START)
if passes then
  return {'claimed', 0, '0', missed}
end
if MODE == 'untracked' and not itself_open then
  -- Whoever published it, or runs it, it is accounted for; only its claim marker decides who may publish.
  redis.call('HINCRBY', ENTRY, 'c:untracked', 1)
  return mine and {'claimed', 0, '0', missed} or {'moved', START, missed}
end
write_itself()
return {'moved', START, missed}
