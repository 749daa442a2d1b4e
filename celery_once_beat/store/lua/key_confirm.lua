-- key_confirm: whoever claimed a keyed window says whether its message went out.
--
-- returns {'confirmed'}   nobody publishes it for RETENTION ms, whoever has claimed it since; or, where it didn't go out,
--                         anybody may at once
--         {'late'}        it didn't go out, and another has claimed it since, or nobody has it: nothing changes

if PUBLISHED then
  redis.call('SET', CLAIM, 'sent:' .. CLAIMANT, 'PX', RETENTION)
elseif redis.call('GET', CLAIM) == CLAIMANT then
  redis.call('DEL', CLAIM)
else
  return {'late'}
end
return {'confirmed'}
