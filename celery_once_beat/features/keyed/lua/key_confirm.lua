-- key_confirm: whoever claimed a keyed window says whether its message went out.
--
-- returns {'confirmed'}   it went out: nobody publishes it for RETENTION ms, whoever has claimed it since; or it didn't:
--                         anybody may publish it at once
--         {'late'}        it didn't go out, and the claim isn't CLAIMANT's any more: nothing changes

if PUBLISHED then
  redis.call('SET', CLAIM, 'sent:' .. CLAIMANT, 'PX', RETENTION)
elseif redis.call('GET', CLAIM) == CLAIMANT then
  redis.call('DEL', CLAIM)
else
  return {'late'}
end
return {'confirmed'}
