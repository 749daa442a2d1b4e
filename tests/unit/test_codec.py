"""The wire: what each reply, hash and record is read as, and what arguments are written as."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_once_beat.errors import StoreDataError
from celery_once_beat.features.alerts.store import ALERTS, Alert, Alerts
from celery_once_beat.features.runtime import store as definitions
from celery_once_beat.features.runtime.store import decode_changes, read_numbers
from celery_once_beat.features.times.store import read_times
from celery_once_beat.lookup import Past, reading
from celery_once_beat.store import codec
from celery_once_beat.store import model as m
from celery_once_beat.store.account import EntryAccount, read_account
from celery_once_beat.store.keys import VERSION
from celery_once_beat.windows import WindowKey

A, B, C = (f"2026-01-01T0{hour}:00:00.000000Z" for hour in (1, 2, 3))
AT = datetime(2026, 1, 1, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
#: AT, as a server counts.
MS = "1767229200000"
WINDOW = WindowKey("a@b", AT)


def same(found: Any, expected: Any) -> None:
    """Also what a comparison leaves out, and whether a number is whole."""
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("read", "reply", "expected"),
    [
        (codec.read_load, ["superseded", "b", "12"], m.Superseded("b", 12)),
        (codec.read_load, f"loaded {A} 12 new {A} {{}}", m.Loaded(AT, 12, "new", "{}", AT)),
        (codec.read_load, f"loaded {B} 12 same {A} ", m.Loaded(AT + HOUR, 12, "same", "", AT)),
        (codec.read_pause, ["unknown"], m.Unknown()),
        (codec.read_pause, ["done"], m.Confirmed()),
        (codec.read_pause, ["paused"], m.Confirmed()),
        (codec.read_claim, ["claimed", 1, MS, 2], m.Claimed(1, AT, 2)),
        (codec.read_claim, ["claimed", 0, "0", 0], m.Claimed(0, None, 0)),
        (codec.read_claim, ["moved", A, 2], m.Moved(AT, 2)),
        (codec.read_claim, ["paused"], m.Paused()),
        (codec.read_claim, ["superseded"], m.Superseded("")),
        (codec.read_claim, ["unknown"], m.Unknown()),
        (codec.read_confirm, ["confirmed"], m.Confirmed()),
        (codec.read_confirm, ["failed"], m.Closed("failed")),
        (codec.read_confirm, ["untracked"], m.Closed("untracked")),
        (codec.read_confirm, ["unchanged"], m.Unchanged()),
        (codec.read_take, ["taken", 2, 3, 1, MS, 4, "0"], m.Taken(2, 3, 1, AT, 4, None)),
        (codec.read_take, ["taken", 2, 3, 1, "0", 4, MS], m.Taken(2, 3, 1, None, 4, AT)),
        (codec.read_take, ["closed", "expired"], m.Closed("expired")),
        (codec.read_take, ["no", "busy"], m.Unchanged("busy")),
        (codec.read_take, ["no", "unconsumed", "by%20night", "7"], m.Unconsumed("by night", 7)),
        (codec.read_begin, f"begun 12 2 {A} 1", m.Begun(12, 2, AT, end_at_once=True)),
        (codec.read_begin, "begun 12 2  0", m.Begun(12, 2, None)),
        (codec.read_begin, ["closed", "done"], m.Closed("done")),
        (codec.read_begin, ["closed", "skipped", "too many"], m.Closed("skipped", "too many")),
        (codec.read_begin, ["waits", A, C, A], m.Waits(AT, (AT + 2 * HOUR, AT))),
        (codec.read_begin, ["waits", ""], m.Waits(None)),
        (codec.read_begin, ["busy", "running"], m.Busy("running")),
        (codec.read_renew, ["renewed"], m.Renewed()),
        (codec.read_renew, ["stale"], m.Stale()),
        (codec.read_hand_over, ["handed over"], m.HandedOver()),
        (codec.read_hand_over, ["stale"], m.Stale()),
        (codec.read_finish, "finished", m.Finished()),
        (codec.read_finish, "stale", m.Stale()),
        (codec.read_finish, ["again", "1500"], m.Again(1.5)),
        (codec.read_close, ["closed", "revoked"], m.Closed("revoked")),
        (codec.read_close, ["unchanged"], m.Unchanged()),
        (codec.read_close, ["sooner"], m.Confirmed()),
        (codec.read_heartbeat, ["1767229200", "250", "b", "c"],
         m.Heartbeat(AT + timedelta(microseconds=250), ("b", "c"))),
        (codec.read_heartbeat, ["1767229200", "0"], m.Heartbeat(AT, ())),
        (codec.read_sweep, [1, ["foreign"], "alerts"], m.Swept(True, [None], frozenset({"alerts"}))),
        (codec.read_spent, ["spent"], m.Spent()),
        (codec.read_spent, ["again", A], m.Spent(AT)),
        (codec.read_spent, ["unknown"], m.Unknown()),
    ],
)  # fmt: skip
def test_each_reply(read: Callable[[Any], Any], reply: Any, expected: Any) -> None:
    """What a script's header says is read as that, each value in its place."""
    same(read(reply), expected)


@pytest.mark.parametrize(
    "verb", ["pause", "claim", "confirm", "begin", "renew", "hand_over", "finish", "close", "word"]
)
def test_a_reply_that_a_verb_cant_give(verb: str) -> None:
    """It is none: nobody acts on it."""
    with pytest.raises((TypeError, LookupError)):
        getattr(codec, f"read_{verb}")([7, "x"])


# ------------------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("queue", "written"),
    [("night", "night"), ("by night", "by%20night"), ("-", "-"), (None, "-"), ("", "-"), ("ü" * 40, "-")],
)
def test_a_queue_in_an_account(queue: str | None, written: str) -> None:
    """Its name has no blanks; one that can't be kept isn't known."""
    assert codec.write_queue(queue) == written


def test_what_workers_consume() -> None:
    """What each said last; what is foreign harms no other."""
    ms = int(MS)
    said = [
        *("w-1 b a", str(ms)), *("w-1 b by%20night", str(ms - 20_000)), *("w-1 b given-up", str(ms - 40_000)),
        *("w-2 c a", str(ms - 60_000)), *("foreign", str(ms)), *("w-3 b a", "inf"),
    ]  # fmt: skip
    found, unreadable = codec.read_workers(said)
    earlier = AT - timedelta(minutes=1)
    assert found == {"w-1": m.WorkerSeen(AT, "b", {"a", "by night"}), "w-2": m.WorkerSeen(earlier, "c", {"a"})}
    assert len(unreadable) == 2
    assert codec.read_workers([]) == ({}, [])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (f"2026-01-01T01:00:00 done {MS} 500 1500 2 host:1 @w",
         Past(AT, "done", AT, AT + HOUR / 7200, AT + 3 * HOUR / 7200, 2, 0, "host:1", "celery@w", False)),
        (f"2026-01-01T01:00:00.25 failed {MS} 0 0 1 host:order w",
         Past(AT + timedelta(seconds=0.25), "failed", AT, AT, AT, 1, 0, "host:order", "w", True)),
        (f"2026-01-01T01:00:00 expired {MS} 0 1000 0 host:1 -",
         Past(AT, "expired", AT, None, AT + HOUR / 3600, 0, 0, "host:1", "", False)),
        (f"2026-01-01T01:00:00 missed {MS} 0 0 0 host:1 -",
         Past(AT, "missed", AT, None, AT, 0, 1, "host:1", "", False)),
        (f"2026-01-01T01:00:00 cancelled {MS} 0 0 5 host:order-1 -",
         Past(AT, "cancelled", AT, None, AT, 0, 5, "host:order-1", "", False)),
    ],
)  # fmt: skip
def test_a_record_of_a_history(record: str, expected: Past) -> None:
    """A record says when, how and by whom a window ended."""
    same(reading.read_past(record), expected)


@pytest.mark.parametrize("word", ["", "do ne", "done1", "dóne", "\x1bdone"])
def test_an_outcome_is_a_word(word: str) -> None:
    """What could move a terminal's cursor is no outcome."""
    with pytest.raises(ValueError, match=r"^found '.*', expected a word$"):
        codec.read_text(word)


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (f"a@b@{A}", WINDOW),
        (f"a!b@{A}", WindowKey("a!b", AT)),
        (f"a@b@{A}!late", None),
        (f"a@b#{A}", None),
        (f"@{A}", None),
        (f"a@{A[:-2]}xZ", None),
        ("", None),
    ],
)
def test_members_of_the_open_windows(member: str, expected: Any) -> None:
    """A member is a window; what is foreign stands for nothing."""
    assert codec.read_members([member]) == [expected]


def test_what_could_not_be_read_stays_an_error() -> None:
    """An answer that is an error is handed on."""
    error = StoreDataError("broken")
    assert definitions.read_definition("key", "name", error) is error
    for read in (decode_changes, read_account):
        assert read("key", error) is error  # type: ignore[operator]
    assert read_numbers(error) is error


# ------------------------------------------------------------------------------------------------- definitions


def test_numbers() -> None:
    """Names with numbers, whichever protocol the server speaks."""
    same(read_numbers(["a", "1", "b", "2"]), {"a": 1, "b": 2})
    same(read_numbers([["a", 1.0], ["b", 2.0]]), {"a": 1, "b": 2})
    same(read_numbers([]), {})
    same(read_numbers(["a", "inf", "b", "9" * 40, "c", "3"]), {"a": 0, "b": 0, "c": 3})


# ------------------------------------------------------------------------------------------------- entries

ENTRY = {"v": str(VERSION), "cursor": C, "born": A, "since": B}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"v": "x"}, "the key 'key' has no version"),
        ({"born": "soon"}, "the key 'key' is no account of an entry: "),
        ({"c:d ne": "1"}, "the key 'key' is no account of an entry: found 'd ne', expected a word"),
        ({f"w:{A}": "1"}, "the key 'key' is no account of an entry: "),
        ({f"w:{A}": f"0 0 0 0 0 {MS} 0 0 0 odd - b -"}, "the key 'key' is no account of an entry: found the word"),
    ],
)
def test_no_entry(given: dict[str, str], words: str) -> None:
    """A hash that can't be read is named."""
    found = read_account("key", {**ENTRY, **given})
    assert isinstance(found, StoreDataError)
    assert str(found).startswith(words)


# ------------------------------------------------------------------------------------------------- the rest


def test_commands() -> None:
    """A command's words are bytes with their lengths; a foreign key's bytes stay what they were."""
    assert codec.pack("GET", "é", 7) == "*3\r\n$3\r\nGET\r\n$2\r\né\r\n$1\r\n7\r\n".encode()
    assert codec.pack_words(["\udcff"]) == "$1\r\n\udcff\r\n"
    words = ["GET", "é\r\n$1\r\n", "\udcff", "", "7"]
    assert codec.unpack(codec.pack(*words)) == words
    assert codec.encode("\udcff") == b"\xff"


def test_times() -> None:
    """Spans and instants are whole milliseconds; what is longer than scripts count is cut."""
    assert [codec.ms(seconds) for seconds in (0, 0.0006, 1.5, 1e11, 1e12)] == [0, 1, 1500, 10**14, 10**14]
    assert codec.ms(float("nan")) == codec.ms(float("inf")) == 10**14
    assert codec.epoch_ms(AT) == int(MS)
    assert codec.epoch_ms(AT + timedelta(microseconds=1999)) == int(MS) + 1
    with pytest.raises(ValueError, match="expected milliseconds since 1970"):
        codec.instant("9" * 15)


def test_a_loss() -> None:
    """How many entries the store has lost, and when; None for nothing, or for what is foreign."""
    assert codec.read_loss({"entries": "3", "at": "1500"}) == m.Loss(3, codec.EPOCH + timedelta(seconds=1.5))
    for found in ({}, {"entries": "3"}, {"entries": "x", "at": "1"}, StoreDataError("x")):
        assert codec.read_loss(found) is None


def test_info() -> None:
    """INFO's lines are names and values."""
    assert codec.read_fullness({"used_memory": "1", "maxmemory": "4"}) == 0.25
    assert codec.read_fullness({"used_memory": "1", "maxmemory": "0"}) == codec.read_fullness({}) == 0
    assert codec.as_info("# Server\r\nversion:7\r\nrole:a:b\r\nblank\r\n") == {"version": "7", "role": "a:b"}


REPORT = m.BeatReport(0.25, 1.5, 3, 1, "1.0", 2)


def test_a_report() -> None:
    """A beat's report is JSON, with the app that it is of; its texts are cut."""
    text = codec.write_report(REPORT, '{"app": "proj"}')
    assert json.loads(text)["app"] == "proj"
    same(reading.read_report(text), asdict(REPORT))
    assert reading.read_report("x") == {}
    same(reading.read_report(json.dumps({**asdict(REPORT), "version": "v" * 999, "entries": 3.0, "lag": 1})),
         asdict(m.BeatReport(0.25, 1.0, 3, 1, "v" * 200, 2)))  # fmt: skip
    for foreign in ({"version": {"a": "b"}}, {"left_out": {"a": 1}}, {"lag": {"a": "b"}}):
        assert reading.read_report(json.dumps({**asdict(REPORT), **foreign})) == {}
    assert codec.write_report(REPORT, "") == json.dumps(asdict(REPORT))


@pytest.mark.parametrize(
    ("text", "app"),
    [
        ('{"app": "proj"}', "'proj'"),
        ('{"app": "proj", "apart": "redis"}', "'proj' ('redis')"),
        (json.dumps({"app": "a" * 99, "apart": "b" * 199}), f"'{'a' * 64}' ('{'b' * 128}')"),
        ("[]", None),
        ("x", None),
        (None, None),
    ],
)
def test_an_app(text: str | None, app: str | None) -> None:
    """Which app a beat is of is cut; what a stranger wrote is nothing."""
    assert codec.read_app(text) == app


@pytest.mark.parametrize("text", ["1 2", "1 2 x", "1 2 3 l50", "1 2 3 z50:1", "1 2 3 l50:1 ", "1 2 ٣"])
def test_histograms_that_cannot_be_read(text: str) -> None:
    """They are for people: the entry is read all the same, and the command that mends them is named."""
    times = read_times(EntryAccount(AT, AT, AT, None, False, None, 0, {}, {}, key="once:key", times=text))
    assert isinstance(times, StoreDataError)
    assert repr(text) in str(times)
    assert str(times).endswith("; with HDEL once:key times they begin anew")


def test_what_a_worker_discarded() -> None:
    """Which worker did, and when; without a worker it is nothing."""
    for text, expected in ((f"{MS} celery@w 1", ("celery@w 1", AT)), (MS, None)):
        assert read_account("key", {**ENTRY, "discarded": text}).discarded == expected


def test_who_paused_it_and_why() -> None:
    """And when, where that is said; of a foreign text nothing."""
    for words, expected in (
        (f'{{"by": "ann", "note": "why", "at": {MS}}}', ("ann", "why", AT)),
        ('{"by": "ann", "note": "why"}', ("ann", "why", None)),
        ("ann", ("", "", None)),
    ):
        found = read_account("key", {**ENTRY, "paused": "1", "paused_words": words})
        assert (found.paused_by, found.paused_for, found.paused_at) == expected


def test_an_alert_of_a_pause() -> None:
    """It says why."""
    fields = ["window", f"a@b@{A}", "kind", "paused", "at", MS, "what", "2 failed"]
    same(ALERTS.read([["12-0", fields]]), Alerts([Alert("12-0", WINDOW, "paused", note="2 failed")], []))
