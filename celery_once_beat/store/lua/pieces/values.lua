-- Values: what is read strictly, and how numbers are written.

local DAY = 86400000

-- A deadline lies this many ms behind the expiry of the run key that it waits for.
local MARGIN = 1000

-- A number within a text: Lua itself would write 1e+15. Commands take numbers as they are.
local function int(number)
  return string.format('%.0f', number)
end

-- Numbers from here on overflow elsewhere. Clients send durations of at most 1e14 ms and retry numbers up to 1e9, so every
-- sum that is written can be read again.
local TOO_LARGE = 1e15

local find = string.find

-- A whole number as this package writes it, or nil. tonumber takes 'nan', '0x10' and ' 7 ' too.
local function whole(text)
  local number = text ~= '' and not find(text, '%D') and text + 0 -- quicker than tonumber
  return number and number < TOO_LARGE and number or nil
end

local function is_instant(text)
  return find(text, '^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ$') ~= nil
end

-- Raised before the first write, so nothing half-written is left behind.
local function bad_field(name, value, expected)
  local found = string.sub(string.gsub(value, '%c', '?'), 1, 40)
  error('BADDATA ' .. ENTRY .. ' field ' .. name .. ': found ' .. found .. ', expected ' .. expected)
end

local function instant_field(name, value)
  return value and (is_instant(value) and value or bad_field(name, value, 'an instant'))
end

-- The number in a field of the entry hash, or `default` where there is none: no field, or '-'.
local function number_field(name, value, default)
  if not value or value == '-' then
    return default
  end
  return whole(value) or bad_field(name, value, 'a whole number')
end

-- The canonical text of an instant. Civil date from a day number: Howard Hinnant, "chrono-Compatible
-- Low-Level Date Algorithms", civil_from_days.
local function instant(ms, us)
  local seconds = math.floor(ms / 1000)
  local z = math.floor(seconds / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local s = seconds % 86400
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day,
    math.floor(s / 3600), math.floor(s / 60) % 60, s % 60, (ms % 1000) * 1000 + us)
end
