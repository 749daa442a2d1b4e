-- keys: lines

local function admission_on_sweep(found)
  if redis.call('ZRANGEBYSCORE', LINES, NOW, '+inf', 'LIMIT', 0, 1)[1] then
    found[#found + 1] = 'admission'
  end
end
