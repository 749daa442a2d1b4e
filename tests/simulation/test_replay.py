"""What a real server answered, replayed against the model: what that doesn't allow, one of the two has wrong."""

from __future__ import annotations

import pytest
from processes import wait_until
from simulation.histories import LENGTH, write_histories
from simulation.model import RULES
from simulation.recorder import Line, RecordingProxy
from simulation.replay import Replay, replay, said

#: What a worker holds to by itself; no reply shows it.
OF_THE_WORKER = {"a lease counts from before the request"}
#: Each reply that decides, which random histories are to come by.
REPLIES = {
    "claim": {"claimed", "moved", "paused", "superseded", "unknown"},
    "confirm": {"confirmed", "unchanged", "failed", "untracked"},
    "take": {"taken", "closed", "no"},
    "postpone": {"postponed", "closed", "no"},
    "backfill": {"claimed", "open", "unknown"},
    "abandon": {"finished", "busy", "unchanged"},
    "receive": {"received", "unchanged"},
    "begin": {"begun", "busy", "closed"},
    "renew": {"renewed", "stale"},
    "hand_over": {"handed over", "stale"},
    "finish": {"finished", "again", "stale"},
    "set": {"done", "same"},
    "delete": {"done", "unknown"},
    "load": {"loaded", "superseded"},
    "unload": {"unloaded", "kept"},
    "close": {"closed", "sooner", "unchanged"},
}


class Told:
    """Replays histories as they are written, and keeps the lines since the server was emptied."""

    def __init__(self) -> None:
        self.replay = Replay()
        self.lines: list[Line] = []
        self.refused: list[str] = []

    def step(self, line: Line) -> None:
        if line.get("command") == "FLUSHALL":
            self.lines.clear()
        self.lines.append(line)
        refused = self.replay.step(line)
        if refused and len(self.refused) < 3:
            own = [each for each in self.lines if "command" in each or each["entry"] == line["entry"]]
            self.refused.append("\n".join([*map(str, own[-LENGTH:]), str(refused)]))


def check(server, number: int, seed: int) -> None:
    """A real server answers so many random histories as the model says."""
    told = Told()
    write_histories(server, number, seed, told.step)
    calls = sum(told.replay.calls.values())
    print(f"{number} histories of seed {seed}, {calls} calls; not modelled: {dict(told.replay.not_modelled)}")
    assert not told.refused, "\n\n".join(told.refused)
    assert not told.replay.not_modelled
    assert calls > number * LENGTH


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.long
def test_random_histories(start_redis, request):
    """A real server answers some hundred random histories as the model says: losses of its data too."""
    check(start_redis(faketime=0), 300, request.config.getoption("seed"))


PARTS = 10


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("part", range(PARTS))
def test_many_histories(part, start_redis, request):
    """The same for 10,000 of them, or as many as ``--histories`` says."""
    number = -(-request.config.getoption("histories") // PARTS)
    check(start_redis(faketime=0), number, request.config.getoption("seed") * PARTS + part)


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_what_is_not_allowed_is_seen(start_redis):
    """A model that lacks a rule doesn't allow what a real server answers, whichever rule: it isn't too kind."""
    lines: list[Line] = []
    write_histories(start_redis(faketime=0), 900, 8, lines.append)
    assert replay(lines)[0] is None
    answers = [line for line in lines if "verb" in line and not isinstance(line["reply"], dict)]
    found = {(line["verb"], said(line["verb"], line["reply"])[0]) for line in answers}
    missing = {(verb, reply) for verb, replies in REPLIES.items() for reply in replies} - found
    assert not missing, "random histories never come by these"
    unseen = {rule for rule in RULES if replay(lines, [rule])[0] is None}
    assert unseen == OF_THE_WORKER


@pytest.mark.long
def test_a_system_whose_worker_is_killed(start_redis, system):
    """Beats and workers, one of them killed in a body, are answered as the model says."""
    lines: list[Line] = []
    store = start_redis()
    with RecordingProxy(store.port, lines.append) as proxy:
        system.use_store(proxy.url())
        system.settings = {"once_beat_lease": 4.0}
        system.kill_point = "worker.body:KILL"
        beats, _ = system.pair()
        start = system.killed_in()
        wait_until(lambda: system.recorded()[start] == 1, "the killed window runs again", 60)
        system.settle(beats)
        system.check_each_once()
        system.use_store(store.url())
    refused, steps = replay(lines)
    assert refused is None, refused
    assert not steps.not_modelled
    assert {"load", "claim", "confirm", "take", "begin", "finish", "heartbeat"} <= steps.calls.keys()
    takes = [line for line in lines if line.get("verb") == "take" and isinstance(line["reply"], list)]
    taken = [line for line in takes if line["reply"][0] == "taken"]
    assert taken
    # One reply that is another: the model refuses it.
    other = [{**line, "reply": ["no", "held"]} if line is taken[0] else line for line in lines]
    assert replay(other)[0] is not None


def test_a_reply_that_cannot_be():
    """The first reply that the model doesn't allow is named, with what it does allow."""
    entry = "once:{7}:entry:nightly"
    first = "2026-01-01T00:00:00.000000Z"
    window = "2026-01-01T00:01:00.000000Z"
    load = {"beat": "b", "fingerprint": "f", "absent_at": "",
            "options": "max_attempts 3 recover 1 grace - overlap - retry_failed_after -"}  # fmt: skip
    claim = {"beat": "b", "from_cursor": first, "fingerprint": "f", "mode": "run", "claim_lease": 5000, "expires": None,
             "missed": [], "marker_ttl": 600_000}  # fmt: skip
    again = {**claim, "beat": "other"}

    def line(verb, args, reply, start=window):
        return {"verb": verb, "entry": entry, "start": start, "args": args, "reply": reply, "at": [1000, 1001]}

    history = [
        line("load", load, f"loaded {first} 1 new {first} ", start=""),
        line("claim", claim, ["claimed", 1, "0", 0]),
        line("buffer", {}, ["whatever"]),
        line("claim", again, ["claimed", 1, "0", 0]),
    ]
    assert replay(history[:3])[0] is None
    refused, steps = replay(history)
    assert refused is not None
    assert (refused.number, refused.allowed, refused.not_modelled) == (4, [("moved", window)], 1)
    assert steps.not_modelled == {"buffer": 1}
