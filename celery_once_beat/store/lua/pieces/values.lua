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

-- Raised before the first write, so nothing half-written is left behind. `key` is the entry's unless it is given.
local function bad_field(name, value, expected, key)
  local found = string.sub(string.gsub(value, '%c', '?'), 1, 40)
  error('BADDATA ' .. (key or ENTRY) .. ' field ' .. name .. ': found ' .. found .. ', expected ' .. expected)
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
