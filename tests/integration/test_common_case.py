"""The common case stands in front of begin's and finish's other cases: it does what those would do without it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from stage import ENTRY, MARK, T0, nth

from celery_once_beat.settings import Settings
from celery_once_beat.store import Ending, Store, scripts
from celery_once_beat.store.codec import epoch_ms, unpack
from celery_once_beat.store.scripts import Request, Verb
from celery_once_beat.windows import WindowKey, format_instant, task_id

SETTINGS = Settings(redis_url="redis://")
WINDOW = WindowKey(ENTRY, nth(5), sent_as=task_id(SETTINGS.key_prefix, ENTRY, nth(5)))
START, OTHER = format_instant(WINDOW.start), format_instant(nth(4))
NOW = epoch_ms(T0 + timedelta(minutes=6))
OWNERS = ("worker:1", "worker:2")
#: Values of fields of the entry, of which None is no field. The first is the common one, and is drawn most often.
FIELDS: dict[str, tuple[str | int | None, ...]] = {
    "v": ("1", None, "2"),
    "cursor": (START, format_instant(nth(9)), OTHER, None, "then"),
    "born": (format_instant(T0), START, None),
    "since": (format_instant(T0), START, None, ""),
    "ttl": (86_400_000, None, "x"),
    "fence": (None, NOW - 1, NOW + 9, "1e3"),
    "last_done": (None, OTHER, format_instant(nth(6))),
    "fingerprint": (MARK, "child", "-"),
    "paused": (None, "1"),
    "recover": ("1", "0"),
    "max_attempts": (3, 1, "-", "x"),
    "grace": ("-", 1000, 10**9),
    "retry_failed_after": ("-", 0, 5000),
    "overlap": ("-", "allow", "skip", "buffer_one", "buffer_all", "other"),
    "deadline": ("-", 60_000),
    "pause_after_failures": ("-", 2),
    "on_failure": ("-", "tasks.tell"),
    "waits": (None, "1"),
    "running": (None, OTHER, START),
    "streak": (None, f"1 {OTHER}", "x"),
    "times": (None, "5 5 5 l50:1 q50:1 r50:1", "x"),
    "c:done": (None, 7, "x"),
    "c:failed": (None, 7),
    "refused": (None, 7, "-1"),
}
#: Those of an account, in its order.
ACCOUNT: tuple[tuple[object, ...], ...] = (
    (0, 1, 3), (0, NOW - 500, NOW + 500), (0, 1), (1, 2), (1, 0, 3), (NOW - 1000,), (0, NOW - 1, NOW + 5000), (0, 1),
    (2, 0, 1), ("held", "retry", "again", "again_due", "waits_turn", "waits_slot"), ("-", *OWNERS), ("host:1:ab",),
    ("celery", "-"),
)  # fmt: skip
BEGUN: tuple[tuple[object, ...], ...] = ((1, 2), (NOW - 500,), (0, 1), *ACCOUNT[3:10], OWNERS, *ACCOUNT[11:])
RUNS = (None, f"run:{NOW - 500}:{OWNERS[0]}", f"run:5:{OWNERS[1]}", f"wait:1:{OWNERS[0]}", f"done:done:{OWNERS[0]}")


def without_times(script: str) -> str:
    """Return a script that always runs at the same time."""
    return script.replace("redis.call('TIME')", f"{{'{NOW // 1000}', '{NOW % 1000 * 1000}'}}")


def others(verb: Verb[Any]) -> tuple[str, str]:
    """Return the script without the common case, and one that says where that isn't met."""
    head = next(text for name, text in verb.source.parts if name == f"store/lua/{verb.name}")
    rest = re.sub(r"\nif [^\n]* then\n(  [^\n]*\n)+end$", "", head)
    assert len(rest) < len(head)
    before, _, _ = verb.script.partition(head)
    return without_times(verb.script.replace(head, rest)), without_times(f"{before}{head}\nreturn 'another case'")


class States:
    """Draws states of a window, and reads what a script makes of one."""

    def __init__(self, store: Store, client: redis.Redis, seed: int) -> None:
        self.store, self.client, self.chance = store, client, random.Random(seed)
        self.keys = store.keys.of_window(WINDOW, START)

    def draw(self, values: tuple[Any, ...], odd: float = 0.04) -> Any:
        return self.chance.choice(values[1:]) if len(values) > 1 and self.chance.random() < odd else values[0]

    def write(self, *, begun: bool) -> None:
        """Write a state, in which the window has mostly ``begun``, or not."""
        self.client.flushdb()
        fields = {name: self.draw(values) for name, values in FIELDS.items()}
        if self.chance.random() > 0.05:
            fields[f"w:{START}"] = " ".join(str(self.draw(values)) for values in (BEGUN if begun else ACCOUNT))
        if self.chance.random() < 0.1:
            fields[f"w:{OTHER}"] = " ".join(str(self.draw(values, 0.3)) for values in ACCOUNT)
        written: Any = {name: value for name, value in fields.items() if value is not None}
        self.client.hset(self.keys["entry"], mapping=written)
        self.client.pexpire(self.keys["entry"], 1000)
        if self.chance.random() > 0.05:
            self.client.zadd(self.keys["open"], {f"{ENTRY}@{START}": NOW + 1000, f"{ENTRY}@{OTHER}": NOW})
        run = self.draw(RUNS[1:] if begun else RUNS)
        if run is not None:
            self.client.set(self.keys["run"], run)

    def outcome(self, script: str, request: Request[Any]) -> Any:
        """Return what a script answers, and all keys behind it; what it raises without where that was."""
        _, _, count, *words = unpack(request.packed)
        try:
            answer: Any = self.client.eval(script, int(count), *words)
        except redis.ResponseError as exc:
            answer = re.sub(r" script: .*|user_script:\d+", "", str(exc))
        found = {}
        for key in sorted(self.client.scan_iter()):
            left = round(self.client.pttl(key), -4)  # ms
            found[key] = self.client.dump(key) if b"alerts" not in key else b"", left
        return answer, found


def begin(states: States) -> Request[Any]:
    draw = states.draw
    return states.store.of_window(
        scripts.BEGIN,
        draw((replace(WINDOW, sent_as="of an order"), WINDOW), 0.5),
        owner=draw(OWNERS),
        lease=30.0,
        retry=draw((0, 1), 0.2),
        tracked=draw((True, False)),
        overlap=draw(("allow", "skip")),
        no_slot=draw(("", "limit")),
    )


def finish(states: States) -> Request[Any]:
    draw = states.draw
    fence, again = draw((NOW - 500, 0, 5)), draw((None, 0.0, 5.0))
    ending = Ending(WINDOW, draw(OWNERS), fence, draw(("done", "failed", "revoked"), 0.2), again, draw((True, False)))
    return states.store.finish_request(ending._replace(failure=draw(("", "it failed")), returned=draw((False, True))))


@pytest.mark.parametrize("make", [begin, finish])
def test_it_does_what_the_others_would(make: Callable[[States], Request[Any]], redis_url: str) -> None:
    """In each state that is drawn, the answer and all that is written are the same without it."""
    common = 0
    with redis.Redis.from_url(redis_url) as client:
        store = Store(replace(SETTINGS, redis_url=redis_url))
        states = States(store, client, seed=5)
        for number in range(1500):
            states.write(begun=make is finish)
            request = make(states)
            assert request.verb is not None
            rest, only = others(request.verb)
            before = {key: client.dump(key) for key in client.scan_iter()}

            def again(before: dict[bytes, bytes] = before) -> None:
                client.flushdb()
                for key, kept in before.items():
                    client.restore(key, 1000 if b"entry" in key else 0, kept)

            if states.outcome(only, request)[0] != b"another case":
                common += 1
                again()
                found = states.outcome(without_times(request.verb.script), request)
                again()
                assert states.outcome(rest, request) == found, number
        client.flushdb()
        store.close()
    assert 300 < common < 1300
