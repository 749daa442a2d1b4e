-- key_confirm: who claimed a keyed window says whether its message went out. Stands without the prelude.
--
-- KEYS[1] claim key
-- ARGV[1] who claimed it   ARGV[2] 1 if the message went out, 0 if not or perhaps not   ARGV[3] ms to remember it
--
-- returns {'confirmed'}   nobody publishes it for so long; or, where it didn't go out, anybody may at once
--         {'late'}        another has claimed it since, or nobody has it: nothing changes

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'late'}
end
if ARGV[2] == '1' then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  redis.call('DEL', KEYS[1])
end
return {'confirmed'}
