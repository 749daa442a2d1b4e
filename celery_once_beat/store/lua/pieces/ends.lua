-- The end of a window.

-- include: plain_end, records
-- hooks: on_close, on_release

local function close_window(window, outcome, owner, ran)
  end_window(window, outcome, owner, ran, on_close)
  on_release()
end

-- End other windows as skipped. Returns their starts.
local function skip_others(others, owner)
  check_count('c:skipped')
  check_count('x:skipped')
  local starts = {}
  for place, each in ipairs(others) do
    end_window(each, 'skipped', owner, nil, on_close)
    starts[place] = each.start
  end
  return starts
end
