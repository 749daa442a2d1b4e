"""docs/reports/ends.md says how each end of a task is recorded, and whether its window runs again; this plays each.

The expectations are two of the document's tables, read from it. The worker's Celery is the one that is installed; for
others, in an environment of their own, each with one command::

    python3.10 -m venv /tmp/5.4 && /tmp/5.4/bin/pip install -e '.[test]' celery==5.4.0
    /tmp/5.4/bin/python -m pytest tests/integration/test_ends_table.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import celery
import pytest
from ends import Play
from preloaded import Preloaded
from processes import Processes, wait_until
from servers import RedisServer, keys_without_expiry, need_server

# One play is for all of these tests: they stay on one process of pytest-xdist.
pytestmark = pytest.mark.xdist_group("ends of a task")

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "reports" / "ends.md").read_text()
NEWEST = celery.VERSION >= (5, 7)
OLDEST = celery.VERSION < (5, 5)

#: Each row, by its first cell, and the end of ``apps.ends_app`` that plays it.
PLAYED = {
    "returns": "returns",
    "raises an exception": "raises",
    "calls `self.retry()`, and returns in the end": "retries",
    "calls `self.retry()` until `max_retries`": "retries too often",
    "has `autoretry_for`, and returns in the end": "autoretry",
    "has `autoretry_for`, and raises until `max_retries`": "autoretry too often",
    "calls `self.replace()`": "replaces",
    "raises `Ignore`": "ignores",
    "raises `Reject(requeue=False)`": "rejects",
    "raises `Reject(requeue=True)`": "requeues",
    "catches its soft time limit, and returns": "soft limit, caught",
    "doesn't catch its soft time limit": "soft limit",
    "returns, and reaches its soft time limit while its end is recorded": "soft limit at its end",
    "returns what can't be encoded as a result": "not encoded",
    "returns, and `on_success` raises `SystemExit`": "exits in on_success",
    "exceeds its hard time limit": "hard limit",
    "the same, with `acks_on_failure_or_timeout=False`: early acks": "hard limit, not acked",
    "the same, with `acks_on_failure_or_timeout=False`: late acks": "hard limit, not acked",
    "the same, with a `Request` class of the task's own": "hard limit, own request",
    "is revoked before it starts": "revoked",
    "is revoked with `terminate=True` while it runs": "terminated",
    "its message expires (`expires`)": "expired",
    "raises `SystemExit` (`sys.exit()`)": "exits",
    "its pool's child is killed (out of memory, say)": "child killed",
    "the same, with `reject_on_worker_lost=True`": "child killed, rejected",
    "the same, with `retry_on_worker_lost=True` (newer Celery)": "child killed, retried",
    "its whole worker is killed": "worker killed",
    "warm shutdown (SIGTERM)": "warm",
    "a second SIGTERM": "warm twice",
    "soft shutdown (`worker_soft_shutdown_timeout`), it returns in time": "soft",
    "soft shutdown, it doesn't return in time": "soft, too long",
    "cold shutdown (SIGQUIT)": "cold",
    "cold shutdown (SIGQUIT) of a worker with the solo pool": "cold, solo",
    "returns, and the result backend was away as it began (`task_track_started`)": "not stored as started",
}
#: The same of the table of other pools; each is there once a pool.
PLAYED_IN_POOLS = {
    "exceeds a soft time limit": "soft limit",
    "exceeds a hard time limit": "hard limit",
    "is revoked with `terminate=True` while it runs": "terminated",
    "raises `SystemExit`": "exits",
    "cold shutdown (SIGQUIT)": "cold",
}


#: What comes to its last line, and ends otherwise then.
ENDS_BEHIND_THE_BODY = ("not encoded", "exits in on_success")


class Row(NamedTuple):
    """A row's expectation for one kind of acks; no ``result``: this version isn't compared."""

    title: str
    entry: str
    outcome: str
    again: str
    result: str | None

    def __str__(self) -> str:
        return self.entry.replace(" ", "_")


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    found = re.search(r"(?:^\|.*\n)+", DOCUMENT.partition(f"{heading}\n")[2], re.MULTILINE)
    assert found, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()[2:]]


ENDS = table("## Every way to end")
POOLS = table("## Other pools")


def by_version(cell: str) -> str | None:
    """What a cell says of this Celery; of versions between it doesn't say all."""
    newest, _, oldest = cell.partition(" (5.4: ")
    if NEWEST:
        return newest
    if OLDEST:
        return oldest.removesuffix(")") or newest
    return None if oldest or newest.startswith("RETRY / PENDING") else newest


def rows() -> Iterator[Row]:
    for title, outcome, both, result in ENDS:
        for column, again in enumerate((both.split(" / ") * 2)[:2]):  # of early acks, and of late ones
            if again != "-":
                end = f"{PLAYED.get(title)}/{('early', 'late')[column]}"
                said = by_version(result)
                if said and "/" in said:
                    states, then, last = said.partition(", then ")
                    said = states.split(" / ")[column] + then + last
                yield Row(title, end, outcome, again, said)


def rows_of_pools() -> Iterator[Row]:
    for title, *outcomes in POOLS:
        for pool, cell in zip(("threads", "gevent"), outcomes, strict=True):
            outcome = by_version(cell)
            if outcome:
                again = "after its lease" if outcome == "open" else "no"
                for acks in ("early", "late"):
                    yield Row(title, f"{pool}: {PLAYED_IN_POOLS.get(title)}/{acks}", outcome, again, None)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory, preloaded: Callable[[], Preloaded]) -> Iterator[Play]:
    """All ends at once, played to their end."""
    directory = tmp_path_factory.mktemp("ends")
    with RedisServer.start(need_server()) as server, Processes(directory, preloaded()) as procs:
        play = Play(server, procs, directory)
        try:
            play.run()
            yield play
            forever = keys_without_expiry(server)
            assert not forever, f"keys without expiry: {forever}"
        except BaseException:
            print(procs.tails())
            raise
        finally:
            play.close()


def played(play: Play, row: Row) -> list[dict[str, object]]:
    """The executions of the row's window, after which it has the outcome that it should."""
    if row.entry.rpartition("/")[0] not in play.ends:
        pytest.skip(f"Celery {celery.__version__} has no such end")
    starts = play.starts(row.entry)
    assert not play.account(row.entry).open, f"its window has no outcome after {len(starts)} executions"
    outcome = "done" if row.outcome == "open" else row.outcome
    assert play.account(row.entry).counts == {outcome: 1}
    finishes = play.ledger.read("finish", entry=row.entry)
    name = row.entry.partition("/")[0]
    to_its_last_line = outcome == "done" and name not in ("replaces", "ignores")
    assert len(finishes) == int(to_its_last_line) + int(name in ENDS_BEHIND_THE_BODY)
    return starts


def check_again(play: Play, row: Row, starts: list[dict[str, object]]) -> None:
    """That the window ran as often as the row says, and for that reason."""
    attempts = [start["attempt"] for start in starts]
    published_again = play.ledger.read("overdue", entry=row.entry)
    if row.again == "no":
        never = row.outcome == "expired" or row.title == "is revoked before it starts"
        assert attempts == ([] if never else [1])
    elif row.again == "its own retries":
        assert attempts == [1, 1, 1]
        assert [start["retries"] for start in starts] == [0, 1, 2]
    elif row.again == "at once":
        assert attempts == [1, 1]
        assert starts[1]["redelivered"], "the broker has delivered it again"
    elif row.again == "after `start_timeout`":
        assert attempts == [1, 1]
        assert published_again
        assert not starts[1]["redelivered"], "a beat has published it again"
    elif row.again == "after its lease":
        assert attempts == [1, 2]
        assert published_again or starts[1]["redelivered"]
    else:
        pytest.fail(f"the document says {row.again!r}")


@pytest.mark.parametrize("row", list(rows()), ids=str)
def test_ends(play: Play, row: Row) -> None:
    """The window's outcome, its executions and Celery's result are those that the document's row says."""
    starts = played(play, row)
    check_again(play, row, starts)
    if row.result is not None:
        *before, last = row.result.split(", then ")
        wait_until(lambda: play.state(row.entry) == last, f"its result is {last}: {play.state(row.entry)}", 60)
        if before:
            # Of a death Celery stores what it does once it has noticed, on a slow machine after the next execution.
            late = {"PENDING"} if row.again == "after its lease" else set()
            assert starts[-1]["seen"] in {before[0]} | late


def test_ends_of_children_that_are_killed(play: Play) -> None:
    """A child that is killed right before it records its end: the window runs again, and ends as that run does."""
    killed = [entry for entry in play.entries if entry.endswith("/killed")]
    assert len(killed) >= 13
    outcomes = {PLAYED[row[0]]: row[1] for row in ENDS}
    for entry in killed:
        starts = play.starts(entry)
        assert not play.account(entry).open, f"{entry} has no outcome after {len(starts)} executions"
        (outcome,) = play.account(entry).counts
        assert outcome in (outcomes[entry.rpartition("/")[0]], "done"), entry
        assert {start["attempt"] for start in starts} == {1, 2}, entry
        assert play.ledger.read("overdue", entry=entry), entry


@pytest.mark.parametrize("row", list(rows_of_pools()), ids=str)
def test_ends_in_other_pools(play: Play, row: Row) -> None:
    """The same of a pool of threads or greenlets, as the document's table of them says."""
    check_again(play, row, played(play, row))


def test_every_end_is_documented(play: Play) -> None:
    """Each row of the tables is played, and each end that is played has its row."""
    assert [row[0] for row in ENDS] == list(PLAYED)
    assert [row[0] for row in POOLS] == list(PLAYED_IN_POOLS)
    documented = set(PLAYED.values())
    documented.add("hard limit, hook raises")  # a row of its own would say what the plain one says
    documented |= {f"{pool}: {end}" for pool in ("threads", "gevent") for end in PLAYED_IN_POOLS.values()}
    assert set(play.ends) <= documented


def test_a_replacement_has_no_window(play: Play) -> None:
    """What a task is replaced by runs, as a task without a window: it isn't refused as a copy of one that is done."""
    for acks in ("early", "late"):
        (ran,) = wait_until(lambda: play.ledger.read("replacement", entry=f"replaces/{acks}"), "it runs", 60)  # noqa: B023
        assert ran["scheduled"] is False


def test_a_soft_limit_is_caught_once(play: Play) -> None:
    """The body that catches its soft limit did get it."""
    for acks in ("early", "late"):
        assert len(play.ledger.read("caught", entry=f"soft limit, caught/{acks}")) == 1
