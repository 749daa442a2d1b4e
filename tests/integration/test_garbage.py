"""Fields of an entry's hash that nobody of ours wrote, against every verb: all or nothing, and the key is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from stage import ENTRY, STATES, VERBS, Stage, answer_or_error, nth

from celery_once_beat.errors import NewerVersionError, OnceError, StoreDataError
from celery_once_beat.store import Begun, Finished, Published
from celery_once_beat.windows import format_instant

ACCOUNT = f"w:{format_instant(nth(1))}"
FIELDS = [
    "v", "cursor", "born", "since", "ttl", "fence", "last_done", "fingerprint", "loaders", "paused", "max_attempts",
    "recover", "grace", "refused", "spent", "times", ACCOUNT, "c:done", "c:missed", "c:untracked", "c:expired",
    "c:failed", "c:dropped",
]  # fmt: skip
#: Words, what Lua takes for a number and Redis doesn't, what overflows, nothing, and bytes that are no text.
GARBAGE = [b"garbage", b"", b"nan", b"inf", b"-7", b"0x10", b"1.5", b"9" * 400, b"\xff\xfe\x00\n"]
ACCOUNTS = [
    b"nan nan nan nan nan nan nan nan none held A beat-1 -",
    b"-1 0 0 1 1 0 0 0 none held - beat-1 -",
    b"0 0 0 1 1 0 0 0 none held",
    b"0 0 0 1 " + b"9" * 400 + b" 0 0 0 none held - beat-1 -",
    b"0 0 0 1 1 0 0 0 garbage held - beat-1 -",
    b"0 0 0 1 1 0 0 0 none garbage - beat-1 -",
]


def _claim_next(stage: Stage, mode: str) -> Any:
    return stage.claim(start=nth(3), since=nth(1), mode=mode, missed=(nth(2),), missed_count=1)


#: verb → the state in which it has most to do, and the call.
CASES: dict[str, tuple[str, Callable[[Stage], Any]]] = {
    "claim": ("unseen", VERBS["claim"]),
    "pass": ("closed", lambda s: _claim_next(s, "pass")),
    "untracked": ("closed", lambda s: _claim_next(s, "untracked")),
    "confirm": ("claimed", VERBS["confirm"]),
    "can't be made": ("claimed", lambda s: s.confirm(Published.IMPOSSIBLE)),
    "take": ("died", lambda s: s.take()),
    "begin": ("published", VERBS["begin A"]),
    "refuse": ("running", VERBS["begin B"]),
    "refuse, closed": ("closed", VERBS["begin B"]),
    "renew": ("running", VERBS["renew A"]),
    "hand over": ("running", VERBS["hand over A"]),
    "finish": ("running", VERBS["finish A"]),
    "finish, late": ("died", VERBS["finish A"]),
    "finish, again": ("running", VERBS["finish A, again"]),
    "expired": ("published", VERBS["expired, n=0"]),
    "backfill": ("closed", VERBS["backfill"]),
    "put off": ("published", lambda s: s.postpone([])[0]),
    "drop": ("published", lambda s: s.postpone([], why="untracked")[0]),
    "load": ("published", lambda s: s.load()),
    "load another": ("published", lambda s: s.load("beat-2", "another mark")),
    "unload": ("published", lambda s: s.unload()),
    "spent": ("published", lambda s: s.spent()),
    "pause": ("published", lambda s: s.store.set_paused(ENTRY, paused=True)),
    "account": ("published", lambda s: s.store.account(ENTRY)),
}
#: These move the deadline themselves, before they ask: the window is overdue.
OVERDUE = {"take", "put off", "drop"}


class Server:
    """Its whole content, to be compared and put back."""

    def __init__(self, url: str) -> None:
        self.raw = redis.Redis.from_url(url)

    def content(self) -> dict[bytes, Any]:
        found = {}
        read = {
            b"hash": self.raw.hgetall,
            b"string": self.raw.get,
            b"list": lambda key: self.raw.lrange(key, 0, -1),
            b"zset": lambda key: self.raw.zrange(key, 0, -1, withscores=True),
        }
        for key in sorted(self.raw.scan_iter(count=1000)):
            found[key] = read[self.raw.type(key)](key)
        return found

    def dump(self) -> list[tuple[bytes, bytes]]:
        return [(key, self.raw.dump(key)) for key in self.raw.scan_iter(count=1000)]

    def restore(self, dumped: list[tuple[bytes, bytes]]) -> None:
        self.raw.flushall()
        for key, value in dumped:
            self.raw.restore(key, 600_000, value)


@pytest.fixture
def server(any_url: str) -> Iterator[Server]:
    server = Server(any_url)
    yield server
    server.raw.close()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.long
def test_a_garbage_field_is_refused_as_a_whole_or_plays_no_part(case: str, server: Server, stage: Stage) -> None:
    """A verb that can't go on for a field names the entry's hash and has written nothing; else it does all it does.

    It is never taken for Redis being away, for which a beat would stop claiming all the others.
    """
    state, verb = CASES[case]
    STATES[state](stage)
    if case in OVERDUE:
        stage.overdue()
    dumped = server.dump()
    wanted = type(answer_or_error(lambda: verb(stage)))
    assert not issubclass(wanted, OnceError)
    key, refused = stage.entry_key, 0
    for field in FIELDS:
        for garbage in [*GARBAGE, *(ACCOUNTS if field == ACCOUNT else [])]:
            server.restore(dumped)
            server.raw.hset(key, field, garbage)
            before = server.content()
            reply = answer_or_error(lambda: verb(stage))
            what = f"{field}={garbage[:20]!r}: {reply!r:.200}"
            if isinstance(reply, OnceError):
                refused += 1
                assert isinstance(reply, (StoreDataError, NewerVersionError)), what
                assert key in str(reply), what
                assert len(str(reply).splitlines()) == 1, what
                assert server.content() == before, what
            assert [k for k in server.raw.scan_iter() if server.raw.pttl(k) == -1] == [], what
    assert refused, "no field is looked at?"


@pytest.mark.parametrize("outcome", ["done", "failed"])
@pytest.mark.parametrize("overlap", [None, "skip", "buffer_all"])
def test_what_may_begin_can_end(overlap: str | None, outcome: str, server: Server, stage: Stage) -> None:
    """A field that its end would stumble over is found by its begin: else the window would run again and again."""
    stage.load(overlap=overlap, deadline=60.0, pause_after_failures=3)
    STATES["published"](stage)
    dumped = server.dump()
    stopped = set()
    for field in [*FIELDS, "deadline", "pause_after_failures", "on_failure", "streak", "running", "waits"]:
        for garbage in GARBAGE:
            server.restore(dumped)
            server.raw.hset(stage.entry_key, field, garbage)
            if isinstance(answer_or_error(stage.begin), OnceError):
                stopped.add(field)
                continue
            end = answer_or_error(lambda: stage.finish(outcome=outcome))
            assert not isinstance(end, OnceError), f"{field}={garbage[:20]!r}: {end!r:.200}"
    assert stopped >= {"c:done", "c:failed", "max_attempts", "deadline", "pause_after_failures"}


def test_a_foreign_turn_stops_no_end(stage: Stage) -> None:
    """Whose turn is next can't be read: what has ended has ended, and says so."""
    STATES["published"](stage)
    assert isinstance(stage.begin(), Begun)
    stage.raw.hset(stage.entry_key, mapping={"waits": "1", "running": "garbage"})
    assert stage.finish() == Finished()
    assert stage.raw.hget(stage.entry_key, "c:done") == "1"


@pytest.mark.parametrize("field", ["born", "since", "last_done", "max_attempts", "refused", "c:done", "c:failed"])
def test_what_an_end_needs_is_named_before_anything_is_written(field: str, stage: Stage) -> None:
    """An instant by the end itself; a number by the claim: the window would stumble over it for ever."""
    instant = field in ("born", "since", "last_done")
    if instant:
        stage.reach("running")
    stage.raw.hset(stage.entry_key, field, "many")
    said = answer_or_error(stage.finish if instant else stage.claim)
    assert isinstance(said, OnceError)
    assert f"{field}: found many" in str(said)
    assert not stage.raw.hexists(stage.entry_key, "c:done") or field == "c:done"
    assert stage.raw.exists(stage.open_key) == instant
