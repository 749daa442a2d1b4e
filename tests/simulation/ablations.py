"""The rules of the protocol, each taken out: the simulation has to fail without it.

An ablation is a change of the package's text, as it is read: the files stay as they are. ``--without NAME`` runs the
simulation so, ``--ablations`` runs it without each in turn and prints the table.
"""

from __future__ import annotations

import importlib.machinery
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ablation:
    """``changes`` are (file of the package, text, text in its place)."""

    #: What the rule says.
    rule: str
    changes: list[tuple[str, str, str]] = field(default_factory=list)


#: name | file | rule, then the lines that go and those in their place; "and" is another change of the same rule.
_TABLE = r"""
claim-compare | store/lua/claim.lua | a claim is a compare-and-set on the cursor
- local moved = entry.cursor ~= FROM_CURSOR
+ local moved = false
claim-fingerprint | store/lua/claim.lua | a claim by a definition that isn't in force is refused
- if entry.fingerprint ~= FINGERPRINT and not owed then
+ if false then
claim-paused | store/lua/claim.lua | a paused entry isn't claimed
- if entry.paused == '1' and not passes then
+ if false then
claim-repeated | store/lua/claim.lua | a claim that is sent again answers as it did
- if moved and START <= entry.cursor and redis.call('GET', CLAIM) == BEAT then
+ if false then
claim-marker | store/lua/claim.lua | of two claims of a time that the store forgot the marker lets one publish
- return redis.call('SET', CLAIM, BEAT, 'NX', 'PX', MARKER_TTL)
+ return redis.call('SET', CLAIM, BEAT, 'PX', MARKER_TTL)
claim-missed-counted | store/lua/claim.lua | windows that a claim passes are counted as missed
- redis.call('HINCRBY', ENTRY, 'c:' .. outcome, missed)
+ local _ = missed
claim-missed-that-ran | store/lua/claim.lua | a window that ran although the cursor didn't know isn't counted as missed
- known[#known + 1], missed = write, missed - 1
+ known[#known + 1], missed = write, missed - 0
claim-opens | store/lua/claim.lua | a claimed window stays open until it has an outcome
- write_window(window, NOW + CLAIM_LEASE, 'cursor', START)
+ redis.call('HSET', ENTRY, 'cursor', START)
claim-retry | store/lua/claim.lua | a retry that the store forgot is due when it was
- left = math.max(left - RETENTION, MARGIN)
+ left = left + 0
begin-running | store/lua/begin.lua | while one execution holds its lease no other begins
- if kind == 'run' then
-   return refuse('busy', 'running')
- end
begin-done | store/lua/begin.lua | a window that is done isn't begun
- if kind == 'done' or before_the_order then
+ if false then
begin-passed | store/lua/begin.lua | a window behind the cursor that isn't open is over, also when its marker has expired
- if not window and TRACKED and is_behind_cursor() then
-   return refuse('closed', '')
- end
begin-waiting | store/lua/begin.lua | while a window waits for a retry only that retry begins
- if kind == 'wait' and detail ~= RETRY then
+ if false then
begin-older-retry | store/lua/begin.lua | a copy that is older than the retry handed over is refused
- if RETRY < window.retry then
+ if false then
begin-to-run-again | store/lua/begin.lua | a window that is to run again later waits for its time
- if window.state == 'again' then
-   return refuse('busy', 'waiting to run again')
- end
begin-repeated | store/lua/begin.lua | begin that is sent again by its owner answers as it did
- if began or kind == 'run' and owner == OWNER then
+ if false then
begin-limits | store/lua/begin.lua | limits end a window at its begin
- local outcome = ended_by_rule(window)
+ local outcome
begin-counts | store/lua/begin.lua | a begin counts as an attempt
- window.attempts, window.revision = window.attempts + 1, window.revision + 1
+ window.attempts, window.revision = window.attempts, window.revision + 1
begin-turn | store/lua/begin.lua | a begin changes the revision, so that a late confirm is told apart
- window.attempts, window.revision = window.attempts + 1, window.revision + 1
+ window.attempts, window.revision = window.attempts + 1, window.revision
fence | store/lua/begin.lua | the fence grows with each begin
- local fence = math.max(entry.fence + 1, window and window.fence + 1 or 0, NOW)
+ local fence = math.max(entry.fence, 1)
begin-deadline | store/lua/begin.lua | the deadline of a window that runs lies behind its lease
- write_window(window, NOW + LEASE + MARGIN, 'fence', int(fence))
+ write_window(window, NOW + DAY, 'fence', int(fence))
overlap-skip | features/admission/lua/before_begin.lua | without overlap a window is skipped while another runs
- local itself = overlap == 'skip'
+ if overlap == 'skip' then return nil end
+ local itself = false
overlap-waits | features/admission/lua/before_begin.lua | without overlap what has begun before waits for the one that runs
- if not is_new(window) then
-     return waits
+ if not is_new(window) then
+     return nil
renew-extends | store/lua/renew.lua | a renewal keeps the run key
- if redis.call('PEXPIRE', RUN, LEASE) == 0 then
+ if false then
renew-deadline | store/lua/renew.lua | a renewal moves the deadline
- redis.call('ZADD', OPEN, 'XX', NOW + LEASE + MARGIN, MEMBER)
+ local _ = MEMBER
renew-owner | store/lua/renew.lua | who lost its window is told so when it renews
- return hold(kind, owner) == 'run' and renew() or {'stale'}
+ return renew()
hold-owner | store/lua/pieces/hold.lua | only its owner ends, renews or hands over a window that runs
- return is_owner(holder) and kind or nil
+ return kind
hold-since | store/lua/pieces/hold.lua | after its lease ran out it has the window again only if nobody began since
- local its_own = window.owner == OWNER and int(window.fence) == FENCE and window.state == 'plain'
+ local its_own = true
hand-over-attempt | store/lua/hand_over.lua | a retry is no death: the attempt doesn't count
- window.attempts = math.max(window.attempts - 1, 0)
+ local _ = window.attempts
hand-over-releases | store/lua/hand_over.lua | a window that was handed over is released
- window.retry, window.state = RETRY, 'retry'
+ window.retry, window.state = RETRY, 'plain'
hand-over-repeated | store/lua/hand_over.lua | a hand-over that is sent again answers as it did, however late
- if window and not kind and window.state == 'retry'
+ if false and window.state == 'retry'
hand-over-marker | store/lua/hand_over.lua | a window that was handed over is held by nobody
- redis.call('DEL', RUN) -- frees memory first
- redis.call('SET', RUN, 'wait:' .. int(RETRY) .. ':' .. OWNER, 'PX', int(hold_for))
finish-stale | store/lua/finish.lua | the end of a stale execution isn't recorded
- if not standing or standing == 'wait' and OUTCOME ~= 'revoked' then
+ if false then
finish-done-owner | store/lua/finish.lua | a finish that is sent again is told from a stale one
-   if owner ~= OWNER then
-     return 'stale'
-   end
finish-again-limit | store/lua/finish.lua | a window that fails runs again up to its limit
- local runs_again = again > 0 and window.attempts < entry.max_attempts
+ local runs_again = again > 0
finish-again-released | store/lua/finish.lua | a window that failed is released until it is to run again
- window.state, window.retry, window.revision = 'again', 0, window.revision + 1
+ window.retry, window.revision = 0, window.revision + 1
close-removes | store/lua/pieces/plain_end.lua | a window that has its outcome is open no longer
- redis.call('ZREM', OPEN, member_of(start))
+ local _ = OPEN
close-marks | store/lua/pieces/plain_end.lua | who ended a window is remembered, so that it is answered the same
- mark_done(owner, outcome, not is_behind_cursor())
+ redis.call('DEL', RUN)
close-counts | store/lua/pieces/plain_end.lua | each outcome is counted once
- local counted = int(check_count(name) + 1)
+ local counted = int(check_count(name) + 2)
take-deadline | store/lua/take.lua | only what is overdue is taken
- if window.deadline > NOW then
+ if false then
take-held | store/lua/take.lua | what somebody holds isn't taken
- if kind then
-   set_deadline(NOW + redis.call('PTTL', RUN) + MARGIN)
-   return {'no', 'busy'}
- end
take-mutex | store/lua/take.lua | the deadline that a take moves is the mutex between beats
- write_window(window, NOW + CLAIM_LEASE)
+ write_window(window, NOW)
take-retry | store/lua/take.lua | what is published again carries the retry that was handed over
- return {'taken', window.revision, window.retry,
+ return {'taken', window.revision, 0,
take-fingerprint | store/lua/take.lua | a beat whose definition isn't in force takes nothing
- if entry.fingerprint ~= FINGERPRINT then
+ if false then
take-limits | store/lua/take.lua | limits end a window when it is taken
- local outcome = ended_by_rule(window)
+ local outcome
take-consumed | store/lua/take.lua | what is in a queue that a worker consumes is taken
-   and not string.find(CONSUMED, ' ' .. queue .. ' ', 1, true) then
+   then
take-unconsumed | store/lua/take.lua | what is in a queue that no worker consumes isn't published again
- if queue_known and beat_can_tell and not later_one_done
+ if false
take-older | store/lua/take.lua | what is older than a window that is done is taken, whoever consumes what
- beat_can_tell and not later_one_done
+ beat_can_tell
consumed-said | worker/duties.py | a worker says what it consumes
- store.consume(worker_name(consumer.hostname), name_broker(consumer.app.connection_for_read()), named)
+ pass
confirm-revision | store/lua/confirm.lua | a confirm that comes late changes nothing
- if window and (window.revision ~= REVISION or PUBLISHED == 'not_yet' and window.message == 'sent') then
+ if false then
confirm-moves | store/lua/confirm.lua | a confirm puts the deadline off
- write_window(window, NOW + delay)
+ local _ = delay
confirm-near | store/lua/confirm.lua | what wasn't published is published again soon
- delay = math.min(1000 * doubled, PUBLISH_TIMEOUT)
+ delay = DAY
receive | features/reserved/lua/receive.lua | while a message waits in a worker its window's deadline is a lease away
- write_window(window, NOW + math.max(LENGTH, redis.call('PTTL', RUN)) + MARGIN)
+ local _ = LENGTH
load-later | store/lua/load.lua | of the beats alive the one that loaded last is right
- if right.fingerprint ~= FINGERPRINT then
+ if false then
load-from-now | store/lua/load.lua | a definition that is new goes on from now
- cursor = cursor and cursor > from and cursor or from
+ cursor = cursor or from
load-cursor-back | store/lua/load.lua | the cursor never goes back
- cursor = cursor and cursor > from and cursor or from
+ cursor = from
load-counted-from | store/lua/load.lua | a definition whose load the store forgot counts from where it did
- COUNTED_FROM > (since or cursor) and up_to_now(COUNTED_FROM) or go_back
+ go_back
load-gone | store/lua/pieces/loaders.lua | what vanished beats loaded doesn't count
- elseif (redis.call('ZSCORE', BEATS, BEAT) or NOW) - (redis.call('ZSCORE', BEATS, beat) or 0) < BEAT_TTL then
+ else
load-loaded-at | store/lua/load.lua | a first load is later than all that are known
- local loaded_at = first and math.min(math.max(NOW, latest + 1), 999999999999999) or LOADED_AT
+ local loaded_at = first and 1 or LOADED_AT
set-in-force | features/runtime/lua/set.lua | a definition that is set is put in force in the same step
- put_in_force(change.mark)
+ local _ = change
sweep-away | store/lua/sweep.lua | a time in which no beat got to a shard makes none of them old
- local shift = since - math.min(math.max(since, 0), MOST_SILENT)
+ local shift = 0
sweep-forgotten | store/lua/sweep.lua | a beat that was silent for too long is told so, and loads its entries again
- redis.call('ZREM', BEATS, beat)
+ local _ = beat
buffer-waits | features/admission/lua/before_begin.lua | with a buffer a window waits while another of its entry has the turn
- local first = window and one_by_one and waits_for(window)
+ local first = window and overlap == 'skip' and waits_for(window)
buffer-order | features/admission/lua/line.lua | of those that wait the oldest goes first
- return first < second or first == second and one.start < other.start
+ return first < second or first == second and one.start > other.start
buffer-keeps | features/admission/lua/before_begin.lua | buffer_one keeps the newest
- return over, over[1] and over[#over].start > START
+ return over, over[1] and over[#over].start < START
end-calls | store/lua/pieces/ends.lua | what ends a window makes the next in line overdue
-   on_release()
begin-calls | features/admission/lua/on_wait.lua | a window that waits for one in line makes that one overdue if nobody has the turn
-     call_next()
limit-waits | features/admission/lua/before_begin.lua | for which there is no slot, that window doesn't begin
- return NO_SLOT ~= '' and waits or nil
+ return nil
limit-counts | features/admission/lua/acquire_slot.lua | no more slots are given than there are
- elseif redis.call('ZCARD', SLOTS) < MOST then
+ elseif true then
limit-dead | features/admission/lua/free_slots.lua | the slots of the dead are free again
- redis.call('ZREMRANGEBYSCORE', SLOTS, '-inf', NOW)
+ local _ = NOW
and | features/admission/lua/acquire_slot.lua
- redis.call('ZREMRANGEBYSCORE', SLOTS, '-inf', NOW)
+ local _ = NOW
limit-stays | features/admission/lua/renew_slot.lua | a slot is kept as long as its window's lease
- redis.call('ZADD', SLOTS, NOW + LENGTH, OWNER .. ' ' .. WINDOW)
+ local _ = LENGTH
limit-leaves | features/admission/lua/release_slot.lua | a slot is given back at the end
- redis.call('ZREM', SLOTS, slot)
+ local _ = slot
limit-calls | features/admission/lua/make_due.lua | a beat makes the windows overdue for which there are slots
- set_deadline(NOW)
+ local _ = NOW
end-told | features/alerts/lua/on_close.lua | the end of a window that isn't done is kept until it is told
- note_end(start, outcome, window and window.failure)
+ local _ = note_end
missed-told | store/lua/claim.lua | windows that are passed over are told one by one
- on_close(start, nil, 'missed')
+ local _ = start
late-told | features/alerts/lua/on_claim.lua | a claim notes when its window is late
- redis.pcall('ZADD', LATE, STARTS_AT + entry.deadline, MEMBER)
+ local _ = LATE
told-noted | features/alerts/lua/alerted.lua | what was told is noted, so that no beat tells it again
- if redis.call('XACK', ALERTS, GROUP, ID) == 0 or not event then
+ if true then
tell-mutex | features/alerts/lua/alerts.lua | what a beat has taken to tell, no other takes meanwhile
- 'beat', IDLE, 0,
+ 'beat', 0, 0,
told-again | features/alerts/lua/alerts.lua | what a beat took to tell, and didn't, another tells
- for _, id in ipairs(idle) do
+ for _, id in ipairs({}) do
told-left | features/alerts/lua/alerted.lua | what a beat can't tell, it leaves to others
- redis.call('XADD', ALERTS, '*', unpack(event[2])) -- behind
+ local _ = unpack(event[2]) -- behind
child-kept | features/keyed/lua/open_child.lua | a child's message is kept until its window has ended
- local fields = {'v', VERSION, 'fingerprint', CHILD, 'm:' .. START, MESSAGE}
+ local fields = {'v', VERSION, 'fingerprint', CHILD}
child-overdue | features/keyed/lua/open_child.lua | a child that was opened, and not confirmed, is overdue soon
- write_window(new_window(CLAIMANT, EXPIRES and NOW + EXPIRES), NOW + OVERDUE_IN, unpack(fields))
+ write_window(new_window(CLAIMANT, EXPIRES and NOW + EXPIRES), NOW + DAY, unpack(fields))
lease-from-before | worker/base.py | a lease is trusted from before the request was sent
- self.lease = Lease(renewal, reply.attempt, sent)
+ self.lease = Lease(renewal, reply.attempt, steady())
and | worker/leases.py
-                 lease.sent = sent
+                 lease.sent = steady()
begin-late-answer | worker/leases.py | a begin whose answer comes later than its lease isn't acted on
- if not isinstance(reply, Begun) or steady() < sent + length:
+ if True:
leases-renewed | worker/execution.py | leases are renewed while their bodies run
-         self.leases.hold(self.lease)
+         pass
hand-over-first | worker/execution.py | a window is handed over before its retry is published
-         try:
-             self.ask_until_answered(lambda: self._hand_over(retry, delay))
+         published = publish()
+         publish = lambda: published
+         try:
+             self.ask_until_answered(lambda: self._hand_over(retry, delay))
owner-of-delivery | worker/request.py | an owner is one delivery: a copy of a message is another
- request[DELIVERY], request[RAW] = delivery_name(self.hostname), kept
+ request[DELIVERY], request[RAW] = 'task:' + str(request['id']), kept
and | worker/execution.py
- owner = execution_name(delivery or delivery_name(request.hostname))
+ owner = delivery or delivery_name(request.hostname)
owner-of-execution | worker/execution.py | an owner is one execution: a pool may give a delivery to a second child
- owner = execution_name(delivery or delivery_name(request.hostname))
+ owner = delivery or delivery_name(request.hostname)
begin-asked | worker/execution.py | a body runs only if its begin was granted
-                 self._refuse(reply, request)
+                 reply = Begun(1, 1, None)
store-away-put-back | worker/execution.py | a message comes again if the store can't be asked
-         except (NewerVersionError, StoreUnavailableError) as exc:
-             put_back(self.sender, request, exc)
+         except (NewerVersionError, StoreUnavailableError) as exc:
+             raise Ignore('away') from exc
end-told-again | worker/base.py | an end is told again while the store doesn't answer
- if not isinstance(exc, StoreUnavailableError) or time.monotonic() + pause > give_up:
+ if True:
and | worker/leases.py
- if isinstance(reply, StoreUnavailableError) and steady() < end.give_up:
+ if False:
recovery | beat/scheduler.py | every beat takes what is overdue
- overdue = list(self.recovery.not_refused(overdue))
+ return
same-task-id | windows.py | a window's messages share one task id
-     return uuid_of(name if ordered is None else f"{name}\x00{format_instant(ordered)}")
+     return uuid_of(name + str(datetime.now()))
claims-of-another | beat/claiming.py | a beat publishes only what it claimed
-             claims.lost.append(entry)
+             claims.won.append(Job(entry.as_of(step.start), step.start, Claimed(1, None)))
moved-cursor | beat/claiming.py | a beat that lost a claim goes on from the store's cursor
- self._entries.apply_claim(entry, reply.cursor if isinstance(reply, Moved) else step.start)
+ self._entries.apply_claim(entry, step.start)
unanswered-claims | beat/claiming.py | a claim that wasn't answered is asked for again
-                 self._entries.claim_unanswered(entry, request.from_cursor, step)
+                 self._entries.advance(entry, step.start)
still-held | beat/publishing.py | what another beat has taken meanwhile is left to it
- if not isinstance(reply, Unchanged)]
+ if True]
polled-at | beat/scheduler.py | what has come due since the schedule was polled is for the next tick
-         return self.clock.at(self._polled)
+         return self.clock.now()
broker-first | beat/scheduler.py | a beat without a broker claims nothing
-             if not self.broker_ready():
-                 return min(self.recovery.due_in(), 1.0) or 0.1
-             self._claim_slices()
+             self._claim_slices()
server-clock | beat/server_clock.py | a beat goes by the server's clock
-         if self._server is None:
+         if True:
expired-too-early | store/lua/close.lua | what a worker discards by a clock that is ahead is overdue soon
- if OUTCOME == 'unknown' or too_early then
+ if too_early then return {'unchanged'} end if OUTCOME == 'unknown' then
pause-certain | store/model.py | a pause that no replica has isn't acknowledged
- class Confirmed(ActedOn):
+ class Confirmed:
uncertain | store/roundtrip.py | a write that no replica has isn't acted on
-         if acknowledged is not None and acknowledged < replicas:
+         if False:
retry-headers | worker/task.py | a retry carries its window's headers
-         options["headers"] = {**(options.get("headers") or {}), **_headers_of(request), "once_id": task_id}
"""


def _read(table: str) -> dict[str, Ablation]:
    found: dict[str, Ablation] = {}
    for block in re.split(r"\n(?![-+])", table.strip()):
        header, *lines = block.split("\n")
        name, file, *rule = header.split(" | ")
        if name != "and":
            ablation = found[name] = Ablation(*rule)
        gone, instead = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        ablation.changes.append((file, gone, instead))
    return found


ABLATIONS = _read(_TABLE)


@dataclass(frozen=True)
class Survivor:
    """Why the simulation bears it that a rule is left out, and a test that fails without it; '': none in one process."""

    why: str
    seen_by: str = ""


#: Rules without which the simulation doesn't fail within 10,000 windows: name | why | the test.
_BORNE = """
take-older | workers say what they consume | integration/test_store_verbs.py::test_what_is_older_than_a_window_that_is_done_is_published_again[valkey]
take-unconsumed | begin refuses the copies | integration/test_store_verbs.py::test_a_verb_in_a_state[valkey-published: take unconsumed]
claim-marker | the store has to lose the cursor and keep the marker, which here it never does | integration/test_store_verbs.py::test_an_untracked_window_that_another_beat_claimed_before_the_loss_is_counted[valkey]
claim-missed-that-ran | the same | integration/test_store_verbs.py::test_a_window_that_ran_though_the_cursor_didnt_know_isnt_missed[valkey]
claim-retry | a failover has to lose just the write of a message that was put back: the kept plan has that | integration/test_store_verbs.py
overlap-waits | a take lets it wait first: begin is the second to look | integration/test_buffers.py::test_who_begins_who_waits_and_who_is_next
store-away-put-back | recovery publishes what was lost so: an earlier commit met an order that shows it after 6,456 windows
hand-over-releases | the retry's own marker keeps others away until it is due | integration/test_store_verbs.py::test_a_verb_in_a_state[valkey-due again: begin A]
finish-done-owner | an end that is told to be stale is said to be, and nothing else comes of it | integration/test_store_verbs.py::test_a_verb_in_a_state[valkey-closed: finish B]
finish-again-limit | the next begin or take meets the limit | integration/test_store_verbs.py::test_running_again_ends_at_max_attempts[valkey]
take-held | begin refuses the copy | integration/test_store_verbs.py::test_a_verb_in_a_state[valkey-running: take overdue]
take-fingerprint | a window may be published by either definition while they change | integration/test_store_verbs.py::test_a_beat_with_another_definition_takes_nothing[valkey]
receive | the window is published once more, and begin refuses the copy | integration/test_store_verbs.py::test_a_verb_in_a_state[valkey-claimed: receive, n=0]
load-later | while a schedule changes the judge allows either definition | integration/test_store_verbs.py::test_of_the_living_the_beat_that_loaded_last_is_right[valkey]
load-cursor-back | a cursor that goes back claims again what has ended, and begin refuses that | integration/test_store_verbs.py::test_a_changed_definition_never_goes_back[valkey]
load-gone | while a schedule changes the judge allows either definition | integration/test_store_verbs.py::test_a_superseded_beat_takes_the_entry_back_when_the_other_is_gone[valkey]
sweep-away | the same | integration/test_store_verbs.py::test_while_a_shard_is_away_no_beat_grows_old[valkey]
sweep-forgotten | what another has made of an entry shows at the next claim, too | integration/test_store_verbs.py::test_a_beat_that_stood_still_has_its_definition_back[valkey]
end-told-again | the window runs again, as after any end that couldn't be told | integration/test_end_after_tracer.py
same-task-id | the store refuses copies by their window; the id is for whoever looks up the result | effects/test_ends_as_done.py
moved-cursor | the beat is told so again at its next claim, which costs a round trip
unanswered-claims | recovery publishes what had been claimed | integration/test_claiming.py::test_a_store_that_goes_away_at_a_claim
still-held | the copy is refused
polled-at | an edit is in force when its call has returned; here nobody edits in the midst of a tick | integration/test_scheduler.py::test_what_comes_due_after_the_poll_is_for_the_next_tick
load-counted-from | a failover has to lose just the first load of a deploy: the kept plan has that | integration/test_store_verbs.py::test_a_load_that_the_store_forgot_counts_from_where_it_did
pause-certain | a failover has to lose just that call: the kept plan has that | integration/test_definition_verbs.py::test_a_pause_that_no_replica_has_is_not_acknowledged
expired-too-early | a worker's clock has to be ahead by more than a message lives, without any other fault: the kept plan has that | integration/test_store_verbs.py::test_an_expired_copy_by_a_clock_that_is_ahead_closes_nothing
"""
SURVIVORS = {name: Survivor(*row) for name, *row in (line.split(" | ") for line in _BORNE.strip().splitlines())}


def read_lua_from(folder: Path, package: Path) -> None:
    """Take the package's Lua from another folder, in this process. Called before the package is imported."""
    read_text = Path.read_text

    def read(self: Path, *args: Any, **kwargs: Any) -> str:
        path = folder / self.relative_to(package) if self.suffix == ".lua" and package in self.parents else self
        return read_text(path, *args, **kwargs)

    Path.read_text = read  # type: ignore[method-assign]


def take_out(name: str, package: Path) -> None:
    """Run without a rule, in this process, from now on. Called before the package is imported."""
    changes: dict[Path, list[tuple[str, str]]] = {}
    for file, old, new in ABLATIONS[name].changes:
        path = package / file
        assert old in path.read_text(), f"{name}: {file} has no {old!r}"
        changes.setdefault(path, []).append((old, new))

    def changed(path: Path, text: str) -> str:
        for old, new in changes.get(path, ()):
            text = text.replace(old, new)
        return text

    read_text = Path.read_text

    def read(self: Path, *args: Any, **kwargs: Any) -> str:
        return changed(self, read_text(self, *args, **kwargs))

    Path.read_text = read  # type: ignore[method-assign]
    loader = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def code_of(self: Any, fullname: str) -> Any:
        path = Path(self.get_filename(fullname))
        if path not in changes:
            return get_code(self, fullname)
        return compile(changed(path, self.get_source(fullname)), str(path), "exec", dont_inherit=True)

    loader.get_code = code_of  # type: ignore[method-assign]
