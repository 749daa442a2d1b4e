"""The rules of the protocol, each taken out: the simulation has to fail without it.

An ablation is a change of the package's text, as it is read: the files stay as they are. ``--without NAME`` runs the
simulation so, ``--ablations`` runs it without each in turn and prints the table.
"""

from __future__ import annotations

import importlib.machinery
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ("ABLATIONS", "SURVIVORS", "Ablation", "Survivor", "take_out")


@dataclass(frozen=True)
class Ablation:
    """``changes`` are (file of the package, text, text in its place)."""

    #: What the rule says.
    rule: str
    changes: tuple[tuple[str, str, str], ...]


def _lua(rule: str, file: str, old: str, new: str) -> Ablation:
    return Ablation(rule, ((f"store/lua/{file}.lua", old, new),))


def _py(rule: str, *changes: tuple[str, str, str]) -> Ablation:
    return Ablation(rule, changes)


ABLATIONS: dict[str, Ablation] = {
    # -- claim
    "claim-compare": _lua(
        "a claim is a compare-and-set on the cursor",
        "claim",
        "if entry.cursor ~= FROM_CURSOR then",
        "if false then",
    ),
    "claim-fingerprint": _lua(
        "a claim by a definition that isn't in force is refused",
        "claim",
        "if entry.fingerprint ~= FINGERPRINT then",
        "if false then",
    ),
    "claim-paused": _lua(
        "a paused entry isn't claimed",
        "claim",
        "if entry.paused == '1' and MODE ~= 'pass' then",
        "if false then",
    ),
    "claim-repeated": _lua(
        "a claim that is sent again answers as it did",
        "claim",
        "if START <= entry.cursor and redis.call('GET', CLAIM) == BEAT then",
        "if false then",
    ),
    "claim-marker": _lua(
        "of two claims of a time that the store forgot the marker lets one publish",
        "claim",
        "local mine = redis.call('SET', CLAIM, BEAT, 'NX', 'PX', MARKER_TTL)",
        "local mine = redis.call('SET', CLAIM, BEAT, 'PX', MARKER_TTL)",
    ),
    "claim-missed-counted": _lua(
        "windows that a claim passes are counted as missed",
        "claim",
        "count('missed', missed)",
        "local _ = missed",
    ),
    "claim-missed-that-ran": _lua(
        "a window that ran although the cursor didn't know isn't counted as missed",
        "claim",
        "missed = missed - 1",
        "missed = missed - 0",
    ),
    "claim-opens": _lua(
        "a claimed window stays open until it has an outcome",
        "claim",
        "write_window(window, NOW + CLAIM_LEASE, 'cursor', START)",
        "redis.call('HSET', ENTRY, 'cursor', START)",
    ),
    "claim-retry": _lua(
        "a retry that the store forgot is due when it was",
        "claim",
        "left = math.max(left - RETENTION, MARGIN)",
        "left = left + 0",
    ),
    # -- begin
    "begin-running": _lua(
        "while one execution holds its lease no other begins",
        "begin",
        "if kind == 'run' then\n  return refuse('busy', 'running')\nend",
        "",
    ),
    "begin-done": _lua(
        "a window that is done isn't begun",
        "begin",
        "if kind == 'done' or BY_SCHEDULE and window and window.backfill == 1 then",
        "if false then",
    ),
    "begin-passed": _lua(
        "a window behind the cursor that isn't open is over, also when its marker has expired",
        "begin",
        "if not open and TRACKED and passed() then\n  return refuse('closed', '')\nend",
        "",
    ),
    "begin-waiting": _lua(
        "while a window waits for a retry only that retry begins",
        "begin",
        "if kind == 'wait' and number ~= RETRY then",
        "if false then",
    ),
    "begin-older-retry": _lua(
        "a copy that is older than the retry handed over is refused",
        "begin",
        "if RETRY < window.retry then",
        "if false then",
    ),
    "begin-to-run-again": _lua(
        "a window that is to run again later waits for its time",
        "begin",
        "if window.state == 'again' then\n  return refuse('busy', 'waiting to run again')\nend",
        "",
    ),
    "begin-repeated": _lua(
        "begin that is sent again by its owner answers as it did",
        "begin",
        "if began or kind == 'run' and owner == OWNER then",
        "if false then",
    ),
    "begin-limits": _lua(
        "limits end a window at its begin",
        "begin",
        "local outcome = limit_reached(window) or too_late(window)",
        "local outcome",
    ),
    "begin-counts": _lua(
        "a begin counts as an attempt",
        "begin",
        "window.attempts, window.turn = window.attempts + 1, window.turn + 1",
        "window.attempts, window.turn = window.attempts, window.turn + 1",
    ),
    "begin-turn": _lua(
        "a begin changes the turn, so that a late confirm is told apart",
        "begin",
        "window.attempts, window.turn = window.attempts + 1, window.turn + 1",
        "window.attempts, window.turn = window.attempts + 1, window.turn",
    ),
    "fence": _lua(
        "the fence grows with each begin",
        "begin",
        "local fence = math.max(entry.fence + 1, window and window.fence + 1 or 0, NOW)",
        "local fence = math.max(entry.fence, 1)",
    ),
    "begin-deadline": _lua(
        "the deadline of a window that runs lies behind its lease",
        "begin",
        "write_window(window, NOW + LEASE + MARGIN, 'fence', fence)",
        "write_window(window, NOW + DAY, 'fence', fence)",
    ),
    "overlap-skip": _lua(
        "without overlap a window is skipped while another runs",
        "begin",
        "    if overlap == 'skip' then\n      return 'skipped'",
        "    if overlap == 'skip' then\n      return nil, '', {}",
    ),
    "overlap-waits": _lua(
        "without overlap what has begun before waits for the one that runs",
        "begin",
        "return itself and 'skipped' or 'waits_turn', first, over",
        "return is_new(window) and (itself and 'skipped' or 'waits_turn') or nil, '', {}",
    ),
    # -- renew, hand_over, finish
    "renew-extends": _lua(
        "a renewal keeps the run key",
        "renew",
        "if redis.call('PEXPIRE', RUN, LEASE) == 0 then",
        "if false then",
    ),
    "renew-deadline": _lua(
        "a renewal moves the deadline",
        "renew",
        "redis.call('ZADD', OPEN, 'XX', NOW + LEASE + MARGIN, MEMBER)",
        "local _ = MEMBER",
    ),
    "renew-owner": _lua(
        "who lost its window is told so when it renews",
        "renew",
        "if hold(kind, owner) ~= 'run' then",
        "if false then",
    ),
    "hold-owner": _lua(
        "only its owner ends, renews or hands over a window that runs",
        "pieces/hold",
        "return is_owner(holder) and kind or nil",
        "return kind",
    ),
    "hold-since": _lua(
        "after its lease ran out it has the window again only if nobody began since",
        "pieces/hold",
        "if window.owner ~= OWNER or int(window.fence) ~= FENCE or window.state ~= 'held'\n",
        "if false and window.state ~= 'held'\n",
    ),
    "hand-over-attempt": _lua(
        "a retry is no death: the attempt doesn't count",
        "hand_over",
        "window.attempts = math.max(window.attempts - 1, 0)",
        "local _ = window.attempts",
    ),
    "hand-over-releases": _lua(
        "a window that was handed over is released",
        "hand_over",
        "window.retry, window.state = RETRY, 'retry'",
        "window.retry, window.state = RETRY, 'held'",
    ),
    "hand-over-repeated": _lua(
        "a hand-over that is sent again answers as it did, however late",
        "hand_over",
        "if open and not kind and window.state == 'retry'",
        "if false and window.state == 'retry'",
    ),
    "hand-over-marker": _lua(
        "a window that was handed over is held by nobody",
        "hand_over",
        "redis.call('DEL', RUN) -- frees memory first\nredis.call('SET', RUN, 'wait:' .. int(RETRY) .. ':' .. OWNER, 'PX', int(hold_for))",
        "",
    ),
    "finish-stale": _lua(
        "the end of a stale execution isn't recorded",
        "finish",
        "if not verdict or verdict == 'wait' and OUTCOME ~= 'revoked' then",
        "if false then",
    ),
    "finish-done-owner": _lua(
        "a finish that is sent again is told from a stale one",
        "finish",
        "  if owner ~= OWNER then\n    return 'stale'\n  end\n",
        "",
    ),
    "finish-again-limit": _lua(
        "a window that fails runs again up to its limit",
        "finish",
        "if again > 0 and window.attempts < most_attempts() then",
        "if again > 0 then",
    ),
    "finish-again-released": _lua(
        "a window that failed is released until it is to run again",
        "finish",
        "window.state, window.retry, window.publishes, window.turn = 'again', 0, 0, window.turn + 1",
        "window.retry, window.publishes, window.turn = 0, 0, window.turn + 1",
    ),
    # -- ends
    "close-removes": _lua(
        "a window that has its outcome is open no longer",
        "pieces/ends",
        "redis.call('ZREM', OPEN, MEMBER)",
        "local _ = OPEN",
    ),
    "close-marks": _lua(
        "who ended a window is remembered, so that it is answered the same",
        "pieces/ends",
        "mark_done(owner, outcome, alone)",
        "redis.call('DEL', RUN)",
    ),
    "close-counts": _lua(
        "each outcome is counted once",
        "pieces/ends",
        "local counted = int(look_at_count(name) + 1)",
        "local counted = int(look_at_count(name) + 2)",
    ),
    # -- take, confirm, receive
    "take-deadline": _lua(
        "only what is overdue is taken",
        "take",
        "if tonumber(deadline) > NOW then",
        "if false then",
    ),
    "take-held": _lua(
        "what somebody holds isn't taken",
        "take",
        "if kind then\n  set_deadline(NOW + redis.call('PTTL', RUN) + MARGIN)\n  return {'no', 'held'}\nend",
        "",
    ),
    "take-mutex": _lua(
        "the deadline that a take moves is the mutex between beats",
        "take",
        "write_window(window, NOW + CLAIM_LEASE)",
        "write_window(window, NOW)",
    ),
    "take-retry": _lua(
        "what is published again carries the retry that was handed over",
        "take",
        "return {'taken', window.turn, window.retry,",
        "return {'taken', window.turn, 0,",
    ),
    "take-fingerprint": _lua(
        "a beat whose definition isn't in force takes nothing",
        "take",
        "if entry.fingerprint ~= FINGERPRINT then",
        "if false then",
    ),
    "take-limits": _lua(
        "limits end a window when it is taken",
        "take",
        "local outcome = limit_reached(window) or too_late(window)",
        "local outcome",
    ),
    "confirm-turn": _lua(
        "a confirm that comes late changes nothing",
        "confirm",
        "if window.turn ~= TURN or PUBLISHED == NOT_YET and window.taken == SENT then",
        "if false then",
    ),
    "confirm-held": _lua(
        "a confirm changes nothing of a window that is begun",
        "confirm",
        "if kind or not is_open() then",
        "if not is_open() then",
    ),
    "confirm-moves": _lua(
        "a confirm puts the deadline off",
        "confirm",
        "write_window(window, NOW + delay)",
        "local _ = delay",
    ),
    "confirm-near": _lua(
        "what wasn't published is published again soon",
        "confirm",
        "delay = math.min(1000 * doubled, PUBLISH_TIMEOUT)",
        "delay = DAY",
    ),
    "receive": _lua(
        "while a message waits in a worker its window's deadline is a lease away",
        "receive",
        "write_window(window, NOW + math.max(LENGTH, redis.call('PTTL', RUN)) + MARGIN)",
        "local _ = LENGTH",
    ),
    # -- definitions
    "load-later": _lua(
        "of the beats alive the one that loaded last is right",
        "load",
        "if right.fingerprint ~= FINGERPRINT then",
        "if false then",
    ),
    "load-from-now": _lua(
        "a definition that is new goes on from now",
        "load",
        "cursor = from > cursor and from or cursor",
        "local _ = from",
    ),
    "load-cursor-back": _lua(
        "the cursor never goes back",
        "load",
        "cursor = from > cursor and from or cursor",
        "cursor = from",
    ),
    "load-counted-from": _lua(
        "a definition whose load the store forgot counts from where it did",
        "load",
        "COUNTED_FROM > (since or cursor) and up_to_now(COUNTED_FROM) or go_back",
        "go_back",
    ),
    "load-gone": _lua(
        "what vanished beats loaded doesn't count",
        "pieces/loaders",
        "elseif (redis.call('ZSCORE', BEATS, BEAT) or NOW) - (redis.call('ZSCORE', BEATS, beat) or 0) < BEAT_TTL then",
        "else",
    ),
    "load-loaded-at": _lua(
        "a first load is later than all that are known",
        "load",
        "local loaded_at = first and math.min(math.max(NOW, latest + 1), 999999999999999) or LOADED_AT",
        "local loaded_at = first and 1 or LOADED_AT",
    ),
    "set-in-force": _lua(
        "a definition that is set is put in force in the same step",
        "set",
        "put_in_force(mark, cursor)",
        "local _ = mark",
    ),
    "sweep-away": _lua(
        "a time in which no beat got to a shard makes none of them old",
        "sweep",
        "local shift = since - math.min(math.max(since, 0), MOST_SILENT)",
        "local shift = 0",
    ),
    "sweep-forgotten": _lua(
        "a beat that was silent for too long is told so, and loads its entries again",
        "sweep",
        "redis.call('ZREM', BEATS, beat)",
        "local _ = beat",
    ),
    # -- windows that wait, and what is told
    "buffer-waits": _lua(
        "with a buffer a window waits while another of its entry has the turn",
        "begin",
        "local first = one_by_one and waits_for(window)",
        "local first = overlap == 'skip' and waits_for(window)",
    ),
    "buffer-order": _lua(
        "of those that wait the oldest goes first",
        "pieces/line",
        "return first < second or first == second and one.start < other.start",
        "return first < second or first == second and one.start > other.start",
    ),
    "buffer-keeps": _lua(
        "buffer_one keeps the newest",
        "begin",
        "newest = each.start > newest and each.start or newest",
        "newest = each.start < newest and each.start or newest",
    ),
    "end-calls": _lua(
        "what ends a window makes the next in line overdue",
        "pieces/ends",
        "  call_next()\n",
        "",
    ),
    "begin-calls": _lua(
        "a window that waits for one in line makes that one overdue if nobody has the turn",
        "begin",
        "  call_next()\n",
        "",
    ),
    "limit-waits": _lua(
        "for which there is no slot, that window doesn't begin",
        "begin",
        "return NO_SLOT ~= '' and 'waits_slot' or nil, '', {}",
        "return nil, '', {}",
    ),
    "limit-counts": _lua(
        "no more slots are given than there are",
        "acquire_slot",
        "elseif redis.call('ZCARD', SLOTS) < MOST then",
        "elseif true then",
    ),
    "limit-dead": _lua(
        "the slots of the dead are free again",
        "pieces/limit",
        "redis.call('ZREMRANGEBYSCORE', SLOTS, '-inf', NOW)",
        "local _ = NOW",
    ),
    "limit-stays": _lua(
        "a slot is kept as long as its window's lease",
        "renew_slot",
        "redis.call('ZADD', SLOTS, NOW + LENGTH, OWNER .. ' ' .. WINDOW)",
        "local _ = LENGTH",
    ),
    "limit-leaves": _lua(
        "a slot is given back at the end",
        "release_slot",
        "redis.call('ZREM', SLOTS, slot)",
        "local _ = slot",
    ),
    "limit-calls": _lua(
        "a beat makes the windows overdue for which there are slots",
        "make_due",
        "set_deadline(NOW)",
        "local _ = NOW",
    ),
    "end-told": _lua(
        "the end of a window that isn't done is kept until it is told",
        "pieces/alerts",
        "note_end(START, outcome, window.failure)",
        "local _ = note_end",
    ),
    "missed-told": _lua(
        "windows that are passed over are told one by one",
        "claim",
        "note_end(start, 'missed')",
        "local _ = start",
    ),
    "late-told": _lua(
        "a claim notes when its window is late",
        "claim",
        "redis.pcall('ZADD', LATE, STARTS_AT + deadline, MEMBER)",
        "local _ = deadline",
    ),
    "told-noted": _lua(
        "what was told is noted, so that no beat tells it again",
        "alerted",
        "if redis.call('XACK', ALERTS, GROUP, ID) == 0 or not event then",
        "if true then",
    ),
    "tell-mutex": _lua(
        "what a beat has taken to tell, no other takes meanwhile",
        "alerts",
        "'beat', IDLE, 0,",
        "'beat', 0, 0,",
    ),
    "told-again": _lua(
        "what a beat took to tell, and didn't, another tells",
        "alerts",
        "for _, id in ipairs(idle) do",
        "for _, id in ipairs({}) do",
    ),
    "told-left": _lua(
        "what a beat can't tell, it leaves to others",
        "alerted",
        "redis.call('XADD', ALERTS, '*', unpack(event[2])) -- behind",
        "local _ = unpack(event[2]) -- behind",
    ),
    # -- Python
    "lease-from-before": _py(
        "a lease is trusted from before the request was sent",
        (
            "worker/protocol.py",
            "            self._own(sent, reply)\n        self.reply = reply",
            "            self._own(steady(), reply)\n        self.reply = reply",
        ),
        ("worker/leases.py", "                lease.sent = sent\n", "                lease.sent = steady()\n"),
    ),
    "begin-late-answer": _py(
        "a begin whose answer comes later than its lease isn't acted on",
        ("worker/protocol.py", "if steady() >= sent + self.length:", "if False:"),
    ),
    "leases-renewed": _py(
        "leases are renewed while their bodies run",
        ("worker/execution.py", "        self.leases.hold(self.lease)\n", "        pass\n"),
    ),
    "hand-over-first": _py(
        "a window is handed over before its retry is published",
        (
            "worker/execution.py",
            '        try:\n            self.send_end(lambda: self._hand_over(options["retries"], _delay(options)))',
            '        published = publish()\n        publish = lambda: published\n        try:\n            self.send_end(lambda: self._hand_over(options["retries"], _delay(options)))',
        ),
    ),
    "owner-of-delivery": _py(
        "an owner is one delivery: a copy of a message is another",
        (
            "worker/request.py",
            "request[DELIVERY], request[RAW] = delivery_name(self.hostname), kept",
            "request[DELIVERY], request[RAW] = 'task:' + str(request['id']), kept",
        ),
        (
            "worker/execution.py",
            "owner = execution_name(_tracing.delivery or getattr(request, DELIVERY, None) or delivery_name(request.hostname))",
            "owner = _tracing.delivery or getattr(request, DELIVERY, None) or delivery_name(request.hostname)",
        ),
    ),
    "owner-of-execution": _py(
        "an owner is one execution: a pool may give a delivery to a second child",
        (
            "worker/execution.py",
            "owner = execution_name(_tracing.delivery or getattr(request, DELIVERY, None) or delivery_name(request.hostname))",
            "owner = _tracing.delivery or getattr(request, DELIVERY, None) or delivery_name(request.hostname)",
        ),
    ),
    "begin-asked": _py(
        "a body runs only if its begin was granted",
        ("worker/execution.py", '        raise Ignore(f"window refused: {reason}")', "        return"),
    ),
    "store-away-put-back": _py(
        "a message comes again if the store can't be asked",
        (
            "worker/execution.py",
            "        except (NewerVersionError, StoreUnavailableError) as exc:\n            put_back(self.task, request, exc)",
            "        except (NewerVersionError, StoreUnavailableError) as exc:\n            raise Ignore('away') from exc",
        ),
    ),
    "end-told-again": _py(
        "an end is told again while the store doesn't answer",
        (
            "worker/protocol.py",
            "if isinstance(exc, StoreUnavailableError) and time.monotonic() + pause <= self._give_up:",
            "if False:",
        ),
        ("worker/leases.py", "if isinstance(reply, StoreUnavailableError) and steady() < end.give_up:", "if False:"),
    ),
    "recovery": _py(
        "every beat takes what is overdue",
        ("beat/scheduler.py", "overdue = list(self._recovery.not_refused(overdue))", "return"),
    ),
    "same-task-id": _py(
        "a window's messages share one task id",
        (
            "windows.py",
            '    return uuid_of(name if ordered is None else f"{name}\\x00{format_instant(ordered)}")',
            "    return uuid_of(name + str(datetime.now()))",
        ),
    ),
    "claims-of-another": _py(
        "a beat publishes only what it claimed",
        (
            "beat/claiming.py",
            "            claims.lost.append(entry)\n",
            "            claims.won.append(Job(entry.by(step.start), step.start, 1, None))\n",
        ),
    ),
    "moved-cursor": _py(
        "a beat that lost a claim goes on from the store's cursor",
        (
            "beat/claiming.py",
            "self._entries.apply_claim(entry, reply.cursor if isinstance(reply, Moved) else step.start)",
            "self._entries.apply_claim(entry, step.start)",
        ),
    ),
    "unanswered-claims": _py(
        "a claim that wasn't answered is asked for again",
        (
            "beat/claiming.py",
            "            for entry, step, request in asked:\n                self._entries.claim_unanswered(entry, request.from_cursor, step)\n            raise",
            "            for entry, step, request in asked:\n                self._entries.advance(entry, step.start)\n            raise",
        ),
    ),
    "still-held": _py(
        "what another beat has taken meanwhile is left to it",
        ("beat/publishing.py", "if not isinstance(reply, Unchanged)]", "if True]"),
    ),
    "polled-at": _py(
        "what has come due since the schedule was polled is for the next tick",
        ("beat/scheduler.py", "        return self.clock.at(self._polled)", "        return self.clock.now()"),
    ),
    "broker-first": _py(
        "a beat without a broker claims nothing",
        (
            "beat/scheduler.py",
            "            if not self.broker_ready():\n                return min(self._recovery.due_in(), 1.0) or 0.1\n            self._claim_slices()",
            "            self._claim_slices()",
        ),
    ),
    "server-clock": _py(
        "a beat goes by the server's clock",
        ("beat/server_clock.py", "        if self._server is None:\n", "        if True:\n"),
    ),
    "expired-too-early": _lua(
        "what a worker discards by a clock that is ahead is overdue soon",
        "close",
        "if OUTCOME == 'unknown' or too_early then",
        "if too_early then return {'unchanged'} end if OUTCOME == 'unknown' then",
    ),
    "pause-certain": _py(
        "a pause that no replica has isn't acknowledged", ("store/roundtrip.py", "    model.Confirmed,\n", "")
    ),
    "uncertain": _py(
        "a write that no replica has isn't acted on",
        ("store/roundtrip.py", "        if acknowledged is not None and acknowledged < replicas:", "        if False:"),
    ),
    "retry-headers": _py(
        "a retry carries its window's headers",
        (
            "worker/task.py",
            '            options["headers"] = {**(options.get("headers") or {}), **_headers_of(request)}\n',
            "",
        ),
    ),
}


@dataclass(frozen=True)
class Survivor:
    """Why the simulation bears it that a rule is left out, and a test that fails without it; '': none in one process."""

    why: str
    seen_by: str = ""


_VERBS = "integration/test_store_verbs.py::"
#: Rules without which the simulation doesn't fail within 10,000 windows.
SURVIVORS: dict[str, Survivor] = {
    "claim-repeated": Survivor(
        "the claim counts as lost, and recovery publishes the window a moment later",
        _VERBS + "test_a_verb_in_a_state[valkey-unseen: claim]",
    ),
    "claim-marker": Survivor(
        "the store has to lose the cursor and keep the marker, which here it never does",
        _VERBS + "test_an_untracked_window_that_another_beat_claimed_before_the_loss_is_counted[valkey]",
    ),
    "claim-missed-that-ran": Survivor(
        "the same", _VERBS + "test_a_window_that_ran_though_the_cursor_didnt_know_isnt_missed[valkey]"
    ),
    "claim-retry": Survivor(
        "a failover has to lose just the write of a message that was put back: the kept plan has that",
        "integration/test_store_verbs.py",
    ),
    "begin-waiting": Survivor(
        "a copy that is older is refused by its number, and one that is later is never sent",
        _VERBS + "test_a_verb_in_a_state[valkey-waiting: begin B, n=2]",
    ),
    "store-away-put-back": Survivor(
        "recovery publishes what was lost so: an earlier commit met an order that shows it after 6,456 windows", ""
    ),
    "hand-over-releases": Survivor(
        "the retry's own marker keeps others away until it is due",
        _VERBS + "test_a_verb_in_a_state[valkey-due again: begin A]",
    ),
    "finish-done-owner": Survivor(
        "an end that is told to be stale is said to be, and nothing else comes of it",
        _VERBS + "test_a_verb_in_a_state[valkey-closed: finish B]",
    ),
    "finish-again-limit": Survivor(
        "the next begin or take meets the limit", _VERBS + "test_running_again_ends_at_max_attempts[valkey]"
    ),
    "take-held": Survivor("begin refuses the copy", _VERBS + "test_a_verb_in_a_state[valkey-running: take overdue]"),
    "take-fingerprint": Survivor(
        "a window may be published by either definition while they change",
        _VERBS + "test_a_beat_with_another_definition_takes_nothing[valkey]",
    ),
    "confirm-held": Survivor("the turn, which begin moves, says the same"),
    "receive": Survivor(
        "the window is published once more, and begin refuses the copy",
        _VERBS + "test_a_verb_in_a_state[valkey-claimed: receive, n=0]",
    ),
    "load-later": Survivor(
        "while a schedule changes the judge allows either definition",
        _VERBS + "test_of_the_living_the_beat_that_loaded_last_is_right[valkey]",
    ),
    "load-cursor-back": Survivor(
        "a cursor that goes back claims again what has ended, and begin refuses that",
        _VERBS + "test_a_changed_definition_never_goes_back[valkey]",
    ),
    "load-gone": Survivor(
        "while a schedule changes the judge allows either definition",
        _VERBS + "test_a_superseded_beat_takes_the_entry_back_when_the_other_is_gone[valkey]",
    ),
    "sweep-away": Survivor("the same", _VERBS + "test_while_a_shard_is_away_no_beat_grows_old[valkey]"),
    "sweep-forgotten": Survivor(
        "what another has made of an entry shows at the next claim, too",
        _VERBS + "test_a_beat_that_stood_still_has_its_definition_back[valkey]",
    ),
    "end-told-again": Survivor(
        "the window runs again, as after any end that couldn't be told", "integration/test_end_after_tracer.py"
    ),
    "same-task-id": Survivor(
        "the store refuses copies by their window; the id is for whoever looks up the result",
        "effects/test_ends_as_done.py",
    ),
    "moved-cursor": Survivor("the beat is told so again at its next claim, which costs a round trip"),
    "unanswered-claims": Survivor(
        "recovery publishes what had been claimed",
        "integration/test_claiming.py::test_a_store_that_goes_away_at_a_claim",
    ),
    "still-held": Survivor("the copy is refused"),
    "polled-at": Survivor(
        "an edit is in force when its call has returned; here nobody edits in the midst of a tick",
        "integration/test_scheduler.py::test_what_comes_due_after_the_poll_is_for_the_next_tick",
    ),
    "load-counted-from": Survivor(
        "a failover has to lose just the first load of a deploy: the kept plan has that",
        "integration/test_store_verbs.py::test_a_load_that_the_store_forgot_counts_from_where_it_did",
    ),
    "pause-certain": Survivor(
        "a failover has to lose just that call: the kept plan has that",
        "integration/test_definition_verbs.py::test_a_pause_that_no_replica_has_is_not_acknowledged",
    ),
    "expired-too-early": Survivor(
        "a worker's clock has to be ahead by more than a message lives, without any other fault: the kept plan has that",
        "integration/test_store_verbs.py::test_an_expired_copy_by_a_clock_that_is_ahead_closes_nothing",
    ),
}


def read_lua_from(folder: Path, package: Path) -> None:
    """Take the store's scripts from another folder, in this process. Called before the package is imported."""
    here, read_text = package / "store" / "lua", Path.read_text

    def read(self: Path, *args: Any, **kwargs: Any) -> str:
        path = folder / self.relative_to(here) if here in self.parents else self
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
