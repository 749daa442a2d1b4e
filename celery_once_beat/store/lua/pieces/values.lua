-- Time and values: what is read strictly, and how numbers are written.

local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

local DAY = 86400000

-- A deadline lies this many ms behind the expiry of the run key that it waits for.
local MARGIN = 1000

-- Lua would write 1.7e+12.
local function int(number)
  return string.format('%.0f', number)
end

-- A whole number as this package writes it, or nil. tonumber takes 'nan', '0x10' and ' 7 ' too, and more than 15 digits
-- overflow elsewhere. Clients send durations of at most 1e14 ms and retry numbers up to 1e9, so every sum that is written
-- can be read again.
local function whole(text)
  return #text <= 15 and string.match(text, '^%d+$') and tonumber(text) or nil
end

local function is_instant(text)
  return string.match(text, '^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ$') ~= nil
end

-- Raised before the first write, so nothing half-written is left behind.
local function bad_field(name, value, expected)
  local found = string.sub(string.gsub(value, '%c', '?'), 1, 40)
  error('BADDATA ' .. ENTRY .. ' field ' .. name .. ': found ' .. found .. ', expected ' .. expected)
end

local function instant_field(name, value)
  return value and (is_instant(value) and value or bad_field(name, value, 'an instant'))
end

-- The number in a field of the entry hash, or `default` where there is none.
local function number_field(name, value, default)
  if not value then
    return default
  end
  return whole(value) or bad_field(name, value, 'a whole number')
end

-- With NOW_ONLY: the server's time lies outside of the window.
local elsewhen = NOW_ONLY and (NOW < STARTS_AT or ENDS_AT and NOW >= ENDS_AT)
