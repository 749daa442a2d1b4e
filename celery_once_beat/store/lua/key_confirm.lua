-- key_confirm: who claimed a keyed window says whether its message went out. Stands without the prelude.
--
-- KEYS[1] claim key
-- ARGV[1] who claimed it   ARGV[2] 1 if the message went out, 0 if not or perhaps not   ARGV[3] ms to remember it
--
-- returns {'confirmed'}   nobody publishes it for so long, whoever has claimed it since; or, where it didn't go out,
--                         anybody may at once
--         {'late'}        it didn't go out, and another has claimed it since, or nobody has it: nothing changes

local claim = redis.call('GET', KEYS[1])
if ARGV[2] == '1' then
  redis.call('SET', KEYS[1], 'sent:' .. ARGV[1], 'PX', ARGV[3])
elseif claim == ARGV[1] then
  redis.call('DEL', KEYS[1])
else
  return {'late'}
end
return {'confirmed'}
