"""What the judge says of an episode, without what it can't know of a simulation.

The judge takes times from README's promise, for a system with room to spare. Here messages may wait for a place that a
call to the store takes, and not a body, and processes that were away wait for some seconds until they try again. Both
are in the simulator's books, and the judge is given them. What it allowed for that is counted.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from .judge import HistoryError, Violation, judge, waits

if TYPE_CHECKING:
    from .world import Books


def rule_of(line: str) -> str:
    """The rule that a line of what is wrong speaks of."""
    if line.startswith("{"):
        return str(json.loads(line)["rule"])
    return line.partition(":")[0]


def judged(result: Books) -> list[str]:
    """What breaks the promise, a line each."""
    try:
        judgement = judge(result.lines(), result.waited)
    except HistoryError as exc:
        return [f"no history: {exc}"]
    wrong = [*result.wrong, *_calm(result), *_own(result), *_children(result)]
    for violation in judgement.violations:
        why = next(filter(None, (ask(result, violation) for ask in _ASKED)), "")
        if why:
            result.counted[why] = result.counted.get(why, 0) + 1
        else:
            wrong.append(json.dumps(vars(violation), sort_keys=True))
    return wrong


def _calm(result: Books) -> list[str]:
    """Where nothing is struck, each window is sent once, begins at once, and ends as its body does."""
    healed = next(line["at"] for line in result.history if line["what"] == "healed")
    pause = next(line["at"] for line in result.history if line["what"] == "paused" and line["at"] > healed)
    since = max([healed + 8.0, *(end for begin, end, _ in [*result.waited, *result.busy] if begin < pause)])
    told = result.told
    begun: dict[tuple[str, float], float] = {}
    for line in result.history:
        key = line.get("entry", ""), line.get("start", -1.0)
        if line["what"] == "started":
            begun.setdefault(key, line["at"])
    # A message that waits for its time, or expires, does so by the worker's own clock.
    clocks = any(line["what"] == "fault" and line["kind"] == "clock" for line in result.history)
    wrong = []
    for (entry, start), number in sorted(result.sent.items()):
        description = told.get(entry)
        if not since < start < pause - 4.0 or description is None:
            continue
        if clocks and any(told[name].get("expires") for name in _group(result, entry)):
            continue
        again = any(description.get(name) for name in ("retries", "rejects", "retry_failed_after"))
        if len(number) != 1 and not again and not waits(description):
            wrong.append(f"calm: window {start} of {entry} was sent {len(number)} times")
        at = begun.get((entry, start), start)
        late = at - max(start, _free_since(result, entry, at))
        if late > 2.0:
            wrong.append(f"calm: window {start} of {entry} began {late:.3f} s late")
    starts = [(line["entry"], line["start"], line["at"]) for line in result.history if line["what"] == "started"]
    for entry, start, at, due in () if clocks else result.retries:
        if due >= start + (told.get(entry, {}).get("expires") or float("inf")):
            continue  # it expires before it is due
        if since < at and due < pause - 3.0 and not _may_wait(told.get(entry, {})):
            came = any((name, of) == (entry, start) and at < then <= due + 2.0 for name, of, then in starts)
            if not came:
                wrong.append(f"calm: the retry of window {start} of {entry} that is due at {due} didn't come")
    return wrong


def _children(result: Books) -> list[str]:
    """Each child that was opened has ended; the judge says the rest, of children as of entries' windows."""
    ended = {
        (each["entry"], each["start"]) for each in result.history if each["what"] == "recorded" and each["outcome"]
    }
    lost = sorted(result.children.keys() - ended)
    if result.children:
        result.counted["children"] = len(result.children)
    return [
        f"child: {entry} of {start} was opened at {result.children[entry, start]}, and is lost" for entry, start in lost
    ]


def _may_wait(told: dict[str, Any]) -> bool:
    """Whether windows of an entry may have to wait, or, as they skip, don't run as soon as they could."""
    return waits(told) or told.get("overlap") == "skip"


def _group(result: Books, entry: str) -> set[str]:
    """The entry, and those with which it shares a limit."""
    limit = result.told[entry].get("limit")
    return {name for name, other in result.told.items() if limit and other.get("limit") == limit} | {entry}


def _free_since(result: Books, entry: str, at: float) -> float:
    """When the last window ended for which one that began then may have had to wait: it may have expired."""
    if not waits(result.told[entry]):
        return 0.0
    group = _group(result, entry)
    ends = (line["at"] for line in result.history if line["what"] in ("ended", "recorded") and line["entry"] in group)
    return max((end for end in ends if end <= at), default=0.0)


class _Faults:
    """When who was struck."""

    def __init__(self, result: Books) -> None:
        self._struck: dict[str, list[tuple[float, float]]] = {}
        for line in result.history:
            if line["what"] == "fault":
                until = line.get("until")
                if line["kind"] == "failover" and line["lose"] and not result.history[0]["wait_replicas"]:
                    # What was lost may show much later.
                    self._struck.setdefault("server", []).append((line["at"] - line["lose"], line["at"] + 30.0))
                end = line["at"] if line["kind"] in ("failover", "clock") else float("inf") if until is None else until
                target = "server" if line["kind"] == "failover" else line.get("target", "")
                self._struck.setdefault(target, []).append((line["at"], end))

    def near(self, process: str, since: float, until: float, margin: float = 3.0) -> bool:
        """Whether a process, or the server, was struck about that time."""
        return any(
            begin - margin <= until and since - margin <= end
            for who in (process, "server")
            for begin, end in self._struck.get(who, ())
        )


def _own(result: Books) -> list[str]:  # noqa: PLR0912  # each rule in its turn
    """What the simulator knows of executions, their fences and their ends, and the judge doesn't."""
    faults = _Faults(result)
    ordered = {(line["entry"], line["start"]) for line in result.history if line["what"] in ("asked", "revoked")}
    windows: dict[tuple[str, float], list[dict[str, Any]]] = {}
    known: dict[str, dict[str, Any]] = {}
    recorded: dict[tuple[str, float], dict[str, Any]] = {}
    for line in result.history:
        if line["what"] == "started":
            known[line["execution"]] = {**line, "ended": float("inf"), "how": "", "final": False}
            windows.setdefault((line["entry"], line["start"]), []).append(known[line["execution"]])
        elif line["what"] == "ended":
            known[line["execution"]].update(ended=line["at"], how=line["how"], final=line.get("final", False))
        elif line["what"] == "recorded":
            recorded[line["entry"], line["start"]] = line
    told_stale = {(entry, start, fence): at for entry, start, fence, at in result.stale}
    forgot = [  # then a fence may come again
        line["at"] for line in result.history if line["what"] == "fault" and line["kind"] == "failover" and line["lose"]
    ]
    forgot *= not result.history[0]["wait_replicas"]
    wrong: list[str] = []
    for key, executions in sorted(windows.items()):
        told = result.told.get(key[0])
        if told is None or key in ordered or told["task"] == "plain":
            continue
        tracked = told.get("tracked", True)
        wrong += _soon(key, executions, told, faults)
        if tracked:
            wrong += _ends(key, executions, told, recorded.get(key), faults)
        # No two begins share a fence, also where one of them slept, which the judge excuses.
        for one, other in itertools.combinations(executions, 2):
            undone = any(one["at"] <= at <= other["at"] for at in forgot)
            if tracked and one.get("fence") is not None and one["fence"] == other.get("fence") and not undone:
                wrong.append(f"same-fence: two executions of {key} have one fence: {one} {other}")
        for execution in executions:
            fence = execution.get("fence")
            later = [each for each in executions if (each.get("fence") or 0) > (fence or 0)]
            before = [each for each in later if each["at"] < execution["ended"]]
            quiet = not faults.near(execution["process"], execution["ended"], execution["ended"])
            told_so = (*key, fence) in told_stale
            if tracked and execution["how"] == "done" and before and quiet and not told_so:
                wrong.append(f"untold: {execution} isn't told that {before[0]['execution']} began after it")
            told_at = told_stale.get((*key, fence))
            end = recorded.get(key, {"at": float("inf")})
            by_limit = end.get("outcome") != execution["how"] or len(executions) >= _most_attempts(result, key[0])
            # Who asks again once the marker has expired isn't told that it closed the window itself.
            expired = told_at is not None and end["at"] + result.marker_ttl <= told_at
            over = told_at is not None and end["at"] <= told_at
            closed = end["at"] < execution["ended"] or (over and (by_limit or expired))
            beside = [each for each in known.values() if told.get("overlap") and each["entry"] == key[0]]
            # A window of its entry that began since keeps it out; so does an older one that is to run again.
            others = [each for each in beside if (each.get("fence") or 0) > (fence or 0)]
            elders = [each for each in others if each["start"] < key[1]]
            began = [each for each in (*later, *others) if told_at is not None and each["at"] <= told_at + 1.0]
            taken = told_at is not None and _taken(result, execution, told_at)
            known_why = began or elders or closed or taken
            if told_at is not None and not (known_why or _others_died(result, execution, told_at)):
                wrong.append(f"no-stale: {execution} is told at {told_at} that another began, and none did")
    # Who has much to send may take longer than a claim's lease: then another sends a copy.
    sorted_sends = [each for sends in result.sent.values() for each in sends]
    for key, sends in sorted(result.sent.items()):
        # There, a copy that was refused, or called for a place, goes next, at once.
        if _may_wait(result.told.get(key[0], {})):
            continue
        for (at, who), (then, other) in itertools.pairwise(sends):
            if who != other and who.startswith("beat") and other.startswith("beat") and then - at < 0.2:
                places = who.partition("-")[0], other.partition("-")[0]
                slow = sum(1 for began, by in sorted_sends if by == who and at - 2.0 < began < at) > 10
                if not slow and not any(faults.near(place, at, then, 2.5) for place in places):
                    wrong.append(f"mutex: {who} and {other} sent window {key} at {at} and {then}")
    return wrong + _copies(result, windows, faults) + _refused(result, windows, faults)


def _most_attempts(result: Books, entry: str) -> int:
    """How many executions a limit allows an entry; of one that came later, the least that any has."""
    limits = {name: description["max_attempts"] for name, description in result.history[0]["entries"].items()}
    return int(limits.get(entry, min(limits.values())))


def _taken(result: Books, execution: dict[str, Any], at: float) -> bool:
    """Whether its lease had run out, and another worker had its window's message: that one may wait for a place."""
    since = execution["at"] + result.history[0]["lease"]
    received = _lines(result, execution["entry"], "received", start=execution["start"])
    return any(since <= line["at"] <= at and line["process"] != execution["process"] for line in received)


def _others_died(result: Books, execution: dict[str, Any], at: float) -> bool:
    """Whether another worker may have begun, and died before its first line: it had the message of such a window.

    Or a failover may have undone what ended it.
    """
    entry = execution["entry"]
    beside = result.told.get(entry, {}).get("overlap")  # then any window of the entry keeps it out
    received = _lines(result, entry, "received", start=None if beside else execution["start"])
    had = {line["process"] for line in received} - {execution["process"]}
    return any(
        line["what"] == "fault"
        and line["kind"] in ("killed", "frozen", "failover")
        and execution["at"] - 0.1 <= line["at"]
        and line["at"] - line.get("lose", 0.0) <= at + 0.1
        and (line["kind"] == "failover" or line["target"] in had)
        for line in result.history
    )


def _copies(result: Books, windows: dict[tuple[str, float], list[dict[str, Any]]], faults: _Faults) -> list[str]:
    """A window whose message waits in the queue isn't sent again before start_timeout."""
    received: dict[tuple[str, float], float] = {}
    for line in result.history:
        if line["what"] == "received":
            received.setdefault((line["entry"], line["start"]), line["at"])
    wrong = []
    least = result.history[0]["start_timeout"] * 0.9
    for key, sends in sorted(result.sent.items()):
        (at, who), *others = sends
        told = result.told.get(key[0], {})
        if not others or not who.startswith("beat") or told.get("task") == "plain" or not told.get("tracked", True):
            continue
        then, by = others[0]
        if not by.startswith("beat"):  # a child's parent, that was held up between its opening and this
            continue
        waits = then - at < least and received.get(key, then) >= then
        struck = faults.near(who.partition("-")[0], at, at, 4.0) or faults.near("broker", at, then, 4.0)
        if waits and not struck and (key not in windows or windows[key][0]["at"] > then):
            wrong.append(f"copies: window {key} was sent at {at} by {who}, and again at {then}")
    return wrong


def _refused(result: Books, windows: dict[tuple[str, float], list[dict[str, Any]]], faults: _Faults) -> list[str]:
    """A copy is refused since another runs only if another runs."""
    lease, workers = result.history[0]["lease"], result.history[0]["workers"]
    wrong = []
    for entry, start, reason, at, places in result.refused:
        runs = any(each["at"] <= at + 0.3 and each["ended"] >= at - 0.2 for each in windows.get((entry, start), ()))
        died = any(faults.near(worker, at - lease - 1.5, at, 0.5) for worker in workers if worker not in places)
        if reason == "running" and not runs and not died and not faults.near("server", at, at, 0.0):
            wrong.append(f"refused: at {at} {places} were refused {start} of {entry}, which nobody runs")
    return wrong


def _soon(key: tuple[str, float], executions: list[dict[str, Any]], told: dict[str, Any], faults: _Faults) -> list[str]:
    """What no fault befell at its end isn't executed again: an untracked window never, a failed one not too soon."""
    for one, other in itertools.pairwise(executions):
        if other["at"] < one["ended"] or not (one["how"] == "done" or one["final"]):
            continue
        if faults.near(one["process"], one["at"], one["ended"]):
            continue
        wait = told.get("retry_failed_after") or 0.0
        if told.get("tracked", True) is False and not (one["final"] and wait):
            return [f"copy: an untracked window was executed again: {one} {other}"]
        if one["final"] and wait and other["at"] < one["ended"] + wait - 0.01:
            return [f"soon: window {key} failed and ran again {other['at'] - one['ended']:.3f} s later: {one} {other}"]
    return []


def _ends(
    key: tuple[str, float], executions: list[dict[str, Any]], told: dict[str, Any], recorded: Any, faults: _Faults
) -> list[str]:
    """What is recorded is how the last one ended that began."""
    if recorded is None or recorded["outcome"] not in ("done", "failed"):
        return []
    begun = [each for each in executions if each["at"] <= recorded["at"] and each.get("fence") is not None]
    if not begun:
        return []
    last = max(begun, key=lambda each: (each["fence"], each["at"]))
    if recorded["outcome"] == "done" and (last["how"] != "done" or last["ended"] > recorded["at"] + 0.01):
        return [f"stale-end: {key} is recorded as done at {recorded['at']}, its last execution is {last}"]
    struck = any(each["how"] == "killed" or faults.near(each["process"], each["at"], each["ended"]) for each in begun)
    if recorded["outcome"] == "failed" and not struck and not (last["how"] == "failed" and last["final"]):
        return [f"given-up: {key} is recorded as failed at {recorded['at']}, its last execution is {last}"]
    return []


def _lines(result: Books, entry: str | None, *what: str, start: float | None = None) -> list[dict[str, Any]]:
    """What the history tells of an entry, or of one window of it."""
    of_entry = (line for line in result.history if line["what"] in what and line.get("entry") == entry)
    return [line for line in of_entry if start is None or line["start"] == start]


def _paused(result: Books, violation: Violation) -> str:
    """Windows of a pause are caught up on after it (docs/cli.md)."""
    if violation.rule not in ("not-owed", "outcome"):
        return ""
    paused = None
    for line in _lines(result, violation.entry, "paused", "resumed"):
        if line["what"] == "paused":
            paused = line.get("asked", line["at"])
        elif paused is not None and paused - 0.001 <= violation.start <= line["at"]:
            return "of a pause"
    later = paused is not None and violation.start > paused and violation.facts.get("outcome") == "missed"
    return "of a pause" if later else ""


def _left(result: Books, violation: Violation) -> str:
    """What an entry owes that is in no schedule any more, no beat can send (docs/logs.md, window_unknown)."""
    if violation.rule != "lost":
        return ""
    told = _lines(result, violation.entry, "schedule")
    left = told and told[-1]["description"] is None and told[-1].get("how") == "deploy"
    return "of an entry that left" if left else ""


def _died(result: Books, violation: Violation) -> str:
    """What began, and what was struck before its body's first line, reached the limit."""
    if violation.rule != "outcome" or violation.facts["outcome"] != "failed":
        return ""
    recorded, faults = violation.facts["recorded"], _Faults(result)
    own = _lines(result, violation.entry, "started", "received", start=violation.start)
    began = [line for line in own if line["what"] == "started" and line["at"] <= recorded]
    unseen = {
        line["at"]
        for line in own
        if line["what"] == "received"
        and line["at"] <= recorded
        and faults.near(line["process"], line["at"], line["at"], 1.0)
        and not any(line["at"] <= each["at"] <= line["at"] + 1.0 for each in began)
    }
    told = result.told.get(violation.entry or "", {})
    limit = _most_attempts(result, violation.entry or "") if told.get("recover", True) else 1
    return "given up after deaths" if len(began) + len(unseen) >= limit else ""


def _skipped(result: Books, violation: Violation) -> str:
    """Without overlap, a late window is skipped also for a newer one that began before it, or waits for a place."""
    if violation.rule != "outcome" or violation.facts.get("outcome") != "skipped":
        return ""
    at = violation.facts["recorded"]
    began = {line["start"] for line in _lines(result, violation.entry, "started") if line["at"] <= at + 0.5}
    waits, faults = result.told.get(violation.entry or "", {}).get("limit"), _Faults(result)
    for line in _lines(result, violation.entry, "received"):
        # Or it was struck before the first line of its body.
        if line["at"] <= at + 0.5 and (waits or faults.near(line["process"], line["at"], line["at"], 1.0)):
            began.add(line["start"])
    over = {line["start"] for line in _lines(result, violation.entry, "recorded") if line["at"] < at - 1.0}
    return "skipped for another" if any(start > violation.start for start in began - over) else ""


def _beside_given_up(result: Books, violation: Violation) -> str:
    """What people gave up while it runs may go on beside the next (docs/cli.md, abandon)."""
    gone = {(line["entry"], line["start"]) for line in result.history if line["what"] == "revoked"}
    facts = violation.facts
    if violation.rule == "beside":
        return "beside one that was given up" if (violation.entry, facts["other_start"]) in gone else ""
    if violation.rule == "limit":
        left = [each for each in facts["running"] if tuple(each) not in gone]
        return "beside one that was given up" if len(left) < facts["most"] else ""
    if violation.rule == "again" and (violation.entry, violation.start) in gone:
        first = next(line for line in _lines(result, violation.entry, "started") if line["at"] == facts["began"])
        slept = any(
            line["kind"] == "frozen" and line["at"] <= facts["recorded"] and line["until"] >= facts["began"] - 0.01
            for line in result.history
            if line["what"] == "fault" and line.get("target") == first["process"] and line.get("until")
        )
        return "given up before its first line" if slept else ""
    return ""


def _by_fence(result: Books, violation: Violation) -> str:
    """Of two that the judge can't tell apart, the larger fence began later; what people gave up may go on."""
    if violation.rule == "attempts":
        asked = len(_lines(result, violation.entry, "asked", start=violation.start))
        facts = violation.facts
        return "ordered: as many again" if facts["executions"] <= facts["max_attempts"] * (1 + asked) else ""
    if violation.rule != "outcome":
        return ""
    at, outcome = violation.facts["recorded"], violation.facts["outcome"]
    if outcome == "revoked":
        return "given up by order" if _lines(result, violation.entry, "revoked", start=violation.start) else ""
    started = _lines(result, violation.entry, "started", start=violation.start)
    begun = [line for line in started if line["at"] <= at and line.get("fence")]
    if not begun:
        return ""
    last = max(begun, key=lambda line: (line["fence"], line["at"]))["execution"]
    ends = [line["how"] for line in _lines(result, violation.entry, "ended") if line["execution"] == last]
    return "told apart by the fence" if ends == [outcome] else ""


_ASKED = (_by_fence, _beside_given_up, _paused, _skipped, _left, _died)
