"""Definitions that people set at run time, as the store keeps them: each verb on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from processes import wait_until
from stage import ENTRY, LEASE, MARK, Stage

from celery_once_beat import Schedules
from celery_once_beat import store as r
from celery_once_beat.errors import NewerVersionError, StoreDataError, UncertainWriteError
from celery_once_beat.features.runtime import store as defs
from celery_once_beat.store import shard_of
from celery_once_beat.windows import WindowKey, format_instant

SECOND = timedelta(seconds=1)


class Defined(Stage):
    """An entry that is set at run time."""

    def set(self, text: str = "one", **given: Any) -> Any:
        request = defs.SetRequest(ENTRY, text, '{"by":"anna","note":"why"}', **given)
        return r.raised(defs.set_many(self.store, [request])[0])

    def delete(self, **given: Any) -> Any:
        return r.raised(defs.delete_many(self.store, [ENTRY], **given)[0])

    @contextmanager
    def same_call(self) -> Iterator[None]:
        """Send what is sent meanwhile as one call, again and again."""
        self.store.new_id = lambda: "mine"
        yield
        del self.store.new_id

    @property
    def known(self) -> defs.StoredDefinition:
        (found,) = defs.read_definitions(self.store, [ENTRY])
        assert isinstance(found, defs.StoredDefinition)
        return found

    def load_it(self, beat: str = "beat-1", mark: str | None = None, **given: Any) -> Any:
        return self.load(beat, mark or self.known.fingerprint, known=None, stored=True, **given)

    def claim_it(self, start: datetime, beat: str = "beat-1", mark: str | None = None, **given: Any) -> Any:
        cursor = self.store.account(ENTRY).cursor
        request = r.ClaimRequest(WindowKey(ENTRY, start), cursor, mark or self.known.fingerprint, **given)
        return self.store.claim_many(beat, [request])[0]

    def changed(self, numbers: list[int]) -> list[Any]:
        """What a beat's sweep finds that has changed since these."""
        now, commands = self.store.snapshot().now, defs.ask_changed(self.store, numbers)
        return [*map(defs.read_numbers, self.store.overdue("beat-1", now, 10, requests=commands).replies)]

    def look(self, known: int = 0) -> tuple[int, dict[str, int]]:
        """The number of the shard's last change, and the names that changed since that of ``known``."""
        numbers = [0] * 16
        shard = shard_of(ENTRY)
        numbers[shard] = known
        changed = dict(self.changed(numbers)[shard])
        return changed.pop("", 0), changed


@pytest.fixture
def stage(new_stage: Callable[..., Any]) -> Defined:
    return new_stage(kind=Defined)


def test_a_definition_is_kept_with_who_and_why(stage: Defined) -> None:
    """By the server's time, without expiry; and its name stands among those of its shard.

    The same again changes nothing, so a deploy can set all that it has. The log keeps the last fifty changes.
    """
    before = stage.store.snapshot().now
    made = stage.set()
    assert before <= made.at <= stage.store.snapshot().now
    assert (made, made.by, made.note) == (defs.Changed(1, made.at), "anna", "why")
    known = stage.known
    assert (known.text, known.version, known.at, known.since) == ("one", 1, made.at, made.at)
    assert (known.by, known.note, known.paused, known.deleted) == ("anna", "why", False, False)
    number, changed = stage.look()
    assert changed == {ENTRY: number}
    assert {stage.raw.ttl(key) for key in stage.all_keys() if "beats" not in key} == {-1}
    for given in ({}, {"paused": False}):
        assert stage.set(**given) == defs.Changed(1, made.at, same=True)
    assert stage.look() == (number, changed)
    for version in range(2, 61):
        assert stage.set(f"text {version}").version == version
    (changes,) = defs.read_changes(stage.store, [ENTRY])
    assert [change.version for change in changes] == list(range(60, 10, -1))
    assert {(change.what, change.by, change.note) for change in changes} == {("set", "anna", "why")}
    assert changes[0].replaced == "text 59"


def test_compare_and_set(stage: Defined) -> None:
    """Who expects another version changes nothing, and is told what there is; 0 stands for none."""
    assert stage.set(if_version=1) == defs.Conflict(None)
    assert stage.set(if_version=0).version == 1
    assert stage.set("two", if_version=0) == defs.Conflict(replace(stage.known, name=""))
    assert stage.set("two", if_version=1).version == 2
    assert stage.set("three", if_version=1) == defs.Conflict(replace(stage.known, name=""))
    assert stage.known.text == "two"
    assert stage.delete(if_version=1) == defs.Conflict(replace(stage.known, name=""))
    assert stage.delete(if_version=2).version == 3
    assert stage.set("four", if_version=2) == defs.Conflict(None)


@pytest.mark.parametrize("verb", ["set", "delete"])
def test_a_lost_reply_is_answered_again(stage: Defined, verb: str) -> None:
    """Sent again by the same call it says the same, also where others have changed it since."""
    stage.set()

    def send() -> Any:
        with stage.same_call():
            return stage.set("two") if verb == "set" else stage.delete()

    answer = send()
    assert (answer.version, send()) == (2, answer)
    stage.set("three")
    assert send() == answer
    assert (stage.known.text, stage.known.version) == ("three", 3)


def test_a_changed_one_is_claimed_by_no_old_version(stage: Defined) -> None:
    """From the answer on: a beat with the old one is refused, until it has read the new one."""
    stage.set()
    old = stage.known.fingerprint
    loaded = stage.load_it()
    assert (loaded.news, loaded.cursor) == ("new", stage.known.since)
    changed = stage.set("two")
    assert isinstance(stage.claim_it(changed.at + SECOND, mark=old), r.Superseded)
    assert stage.load_it(mark=old).cursor == loaded.cursor
    owed_until = changed.at - SECOND  # of another change, before it
    assert isinstance(stage.claim_it(changed.at + SECOND, mark=old, owed_until=owed_until), r.Superseded)
    assert stage.store.account(ENTRY).fingerprint == stage.known.fingerprint
    assert stage.load_it(beat="beat-2").news == "same"
    assert isinstance(stage.claim_it(changed.at + SECOND, beat="beat-2"), r.Claimed)


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "not loaded"])
def test_what_is_owed_is_claimed_however_often_it_is_set(stage: Defined, *, loaded: bool) -> None:
    """By a beat whose version was replaced while it read it: what starts before that is of versions that it knows."""
    made = stage.set()
    if loaded:
        stage.load_it()
    wait_until(lambda: stage.store.snapshot().now > made.at + SECOND / 10, "some time has passed", 10)
    second = stage.set("two")
    read = stage.known.fingerprint
    stage.set("three")
    assert stage.load_it(mark=read).cursor == made.at
    account = stage.store.account(ENTRY)
    assert account.fingerprint == stage.known.fingerprint, "the last one is in force"
    owed, late = made.at + SECOND / 20, second.at + SECOND
    assert isinstance(stage.claim_it(late, mark=read, owed_until=second.at), r.Superseded)
    assert isinstance(stage.claim_it(owed, mark=read, owed_until=second.at), r.Claimed)
    stage.load("beat-3", mark=MARK, known=None)
    assert isinstance(stage.claim_it(owed + SECOND / 50, mark=read, owed_until=second.at), r.Superseded), "a beat's own"
    assert isinstance(stage.load_it(mark=read), r.Superseded)


def test_what_a_deleted_one_owed_is_claimed_by_nobody(stage: Defined) -> None:
    """Not even by a beat that read an earlier version."""
    made = stage.set()
    stage.load_it()
    wait_until(lambda: stage.store.snapshot().now > made.at + SECOND / 10, "some time has passed", 10)
    second = stage.set("two")
    read, cursor = stage.known.fingerprint, stage.store.account(ENTRY).cursor
    stage.delete()
    request = r.ClaimRequest(WindowKey(ENTRY, made.at + SECOND / 20), cursor, read, owed_until=second.at)
    assert isinstance(stage.store.claim_many("beat-1", [request])[0], r.Moved)
    assert isinstance(stage.load_it(mark=read), r.Superseded)


def test_a_new_one_counts_from_when_it_was_set(stage: Defined) -> None:
    """However much later the first beat comes; and only the first: one that lost its account goes on from now."""
    made = stage.set()
    loaded = stage.load_it()
    assert (loaded.news, loaded.cursor, loaded.since) == ("new", made.at, made.at)
    stage.raw.delete(stage.entry_key)
    again = stage.load_it()
    assert again.news == "new"
    assert again.cursor > made.at


def test_a_deleted_ones_open_windows_go_on(stage: Defined) -> None:
    """A beat that knows of the deletion takes what is overdue; nothing new is claimed."""
    stage.set()
    loaded = stage.load_it()
    window = WindowKey(ENTRY, loaded.cursor + SECOND)
    old = stage.known.fingerprint
    stage.claim_it(window.start)
    stage.start = window.start
    assert stage.delete() == defs.Changed(2, stage.known.at)
    assert stage.known.deleted
    assert isinstance(stage.claim_it(window.start + SECOND, mark=old), r.Superseded)
    stage.overdue()
    assert stage.store.take_many("beat-2", [(window, old)]) == [r.Unchanged("superseded")]
    (taken,) = stage.store.take_many("beat-2", [(window, stage.known.fingerprint)])
    assert isinstance(taken, r.Taken)
    begun = stage.store.begin(window, "A", LEASE)
    assert stage.store.finish(r.Ending(window, "A", begun.fence, "done")) == r.Finished()


def test_of_a_deleted_one_nothing_stays(stage: Defined) -> None:
    """Thirty days later all of it has expired: its text, its log, its account, its name."""
    stage.set()
    stage.load_it(ttl=400 * 86_400.0)
    number, _ = stage.look()
    stage.delete()
    after, changed = stage.look(number)
    assert after > number
    assert changed == {}, "the name isn't among those that are there"
    (gone,) = defs.deleted_since(stage.store, {shard_of(ENTRY): number})
    assert gone == {ENTRY: after}
    ttls = {key: stage.raw.ttl(key) for key in stage.all_keys()}
    assert all(0 < ttl <= 30 * 86_400 for ttl in ttls.values()), ttls
    assert stage.delete() == r.Unknown()


def test_set_again_after_a_deletion(stage: Defined) -> None:
    """The version goes on, so no old compare-and-set hits; the time without it owes nothing; it stays again."""
    stage.set()
    stage.load_it()
    stage.store.set_paused(ENTRY, paused=True)
    stage.delete()
    again = stage.set(if_version=0)
    assert again.version == 4
    account = stage.store.account(ENTRY)
    assert (account.cursor, account.since, account.paused) == (again.at, again.at, False)
    assert not stage.known.paused
    number, changed = stage.look()
    assert changed == {ENTRY: number}
    kept = [key for key in stage.all_keys() if stage.raw.ttl(key) == -1]
    assert [key.partition("}:")[2] for key in kept] == [f"changes:{ENTRY}", f"def:{ENTRY}", "defs"]
    (changes,) = defs.read_changes(stage.store, [ENTRY])
    assert [change.what for change in changes] == ["set", "delete", "pause", "set"]


def test_a_pause_is_one_thing(stage: Defined) -> None:
    """Whoever orders it: kept with the definition, so that it holds before a beat has loaded it and after a loss."""
    assert stage.store.set_paused(ENTRY, paused=True) == r.Unknown()
    stage.set()
    assert stage.store.set_paused(ENTRY, '{"by":"bob"}', paused=True)
    assert (stage.known.paused, stage.known.by, stage.known.version) == (True, "bob", 2)
    loaded = stage.load_it()
    assert loaded.pause
    assert stage.claim_it(loaded.cursor + SECOND) == r.Paused()
    stage.raw.delete(stage.entry_key)
    assert stage.load_it().pause
    assert stage.set("two").paused, "a change leaves it as it is"
    assert stage.store.set_paused(ENTRY, paused=False)
    assert not stage.known.paused
    assert isinstance(stage.claim_it(stage.known.since + SECOND), r.Claimed)
    before = stage.look()
    assert stage.store.set_paused(ENTRY, paused=False)
    assert stage.look() == before, "it was as asked"


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "not loaded"])
@pytest.mark.parametrize("resume", ["resume", "set", "from now"])
def test_one_that_was_made_paused_owes_nothing(stage: Defined, resume: str, *, loaded: bool) -> None:
    """It counts from when it is resumed, also if it was changed meanwhile; the next pause is as any other's."""
    stage.set(paused=True)
    if loaded:
        stage.load_it()
    stage.set("two")
    if resume == "set":
        stage.set("two", paused=False)
    else:
        defs.set_paused(stage.store, ENTRY, "{}", paused=False, from_now=resume == "from now")
    resumed = stage.known.at
    account = stage.store.account(ENTRY)
    assert (account.cursor, account.since) == (resumed, resumed) if loaded else account is None
    assert stage.load_it().cursor == resumed
    for paused in (True, False):
        defs.set_paused(stage.store, ENTRY, "{}", paused=paused)
    assert stage.store.account(ENTRY).cursor == resumed


def test_what_was_paused_later_is_owed_unless_it_is_resumed_from_now(stage: Defined, any_url: str) -> None:
    """From now on the windows of the pause are cancelled, and counted; one that no beat has loaded owes none."""
    with closing(Schedules(url=any_url)) as client:
        for name in (ENTRY, "unloaded"):
            client.set(name, task="t", schedule=0.01)
            client.pause(name)
        cursor = stage.load_it().cursor
        wait_until(lambda: stage.store.snapshot().now > cursor + SECOND / 5, "some windows have started", 10)
        client.resume(ENTRY)
        assert stage.store.account(ENTRY).cursor == cursor
        client.pause(ENTRY)
        before = stage.store.snapshot().now
        for name in (ENTRY, "unloaded"):
            resumed = client.resume(name, from_now=True)
            assert not resumed.paused
            assert client.resume(name, from_now=True) == resumed, "it is resumed already"
        account = stage.store.account(ENTRY)
        assert account.counts["cancelled"] >= 19
        assert account.cursor > before - SECOND / 50
        (known,) = defs.read_definitions(stage.store, ["unloaded"])
        assert stage.raw.hget(stage.store.keys.of_entry("def", "unloaded"), "first") == format_instant(known.at)


def test_a_static_entry_goes_before_it(stage: Defined) -> None:
    """While a beat that has one lives, whoever loaded or set first; then what was set counts from now."""
    stage.set()
    stage.load_it("beat-1")
    static = stage.load("beat-2", mark=MARK, known=None, alive=("beat-1",))
    reply = stage.load_it("beat-1", alive=("beat-2",), loaded_at=1)
    assert isinstance(reply, r.Superseded)
    assert reply.beat == "beat-2"
    stage.set("two")
    assert stage.store.account(ENTRY).fingerprint == MARK
    (claimed,) = stage.store.claim_many(
        "beat-2", [r.ClaimRequest(WindowKey(ENTRY, static.cursor + SECOND), static.cursor, MARK)]
    )
    assert isinstance(claimed, r.Claimed)
    again = stage.load_it("beat-1", alive=())
    assert isinstance(again, r.Loaded), "beat-2 is gone"
    assert again.news == "changed"
    assert again.cursor >= static.cursor + SECOND
    assert stage.load("beat-3", mark=MARK, known=None, alive=("beat-1",)).news == "changed"
    stage.delete()
    assert stage.store.account(ENTRY).fingerprint == MARK, "it stays in force"


def test_the_number_of_changes_never_goes_back(stage: Defined) -> None:
    """Also after the server's data was lost: a beat that knows a higher one sees that its own is missing."""
    stage.set()
    number, _ = stage.look()
    stage.raw.flushall()
    assert stage.look(number) == (0, {})
    stage.set()
    again, changed = stage.look(number)
    assert again > number
    assert changed == {ENTRY: again}
    stage.raw.zadd(stage.shard + "defs", {"": 5 * 10**14})
    stage.set("two")
    assert stage.look()[0] == 5 * 10**14 + 1
    stage.raw.zadd(stage.shard + "defs", {"": 1e15})
    with pytest.raises(StoreDataError, match=":defs has no number"):
        stage.set("three")


@pytest.mark.parametrize(
    ("field", "value", "error", "words"),
    [
        ("v", "22", NewerVersionError, ":nightly.*22"),
        ("version", "x\n1", StoreDataError, ":nightly"), ("at", "now", StoreDataError, ":nightly"),
        ("", "", StoreDataError, "holds a list, expected a hash"),
    ],
)  # fmt: skip
def test_foreign_keys_are_one_entrys_trouble(stage: Defined, field: str, value: str, error: Any, words: str) -> None:
    """A text, another type, a newer version's: each is named, and nothing is written."""
    stage.set()
    key = stage.store.keys.of_entry("def", ENTRY)
    if field:
        stage.raw.hset(key, field, value)
    else:
        stage.raw.delete(key)
        stage.raw.lpush(key, "x")
    for send in (stage.set, stage.delete, lambda: stage.store.set_paused(ENTRY, paused=True)):
        with pytest.raises(error, match=words):
            send()
    (found,) = defs.read_definitions(stage.store, [ENTRY])
    assert isinstance(found, error)
    stage.raw.lpush(stage.store.keys.of_entry("changes", ENTRY), "what")
    (changes,) = defs.read_changes(stage.store, [ENTRY])
    assert isinstance(changes, StoreDataError)


@pytest.mark.long
def test_a_pause_that_no_replica_has_is_not_acknowledged(new_stage: Callable[..., Any]) -> None:
    """The same of an entry of a beat's own schedule."""
    stage = new_stage(kind=Defined, wait_replicas=1)
    stage.load()
    for paused in (True, False):
        with pytest.raises(UncertainWriteError):
            stage.store.set_paused(ENTRY, paused=paused)


def test_it_counts_from_where_another_scheduler_stopped(stage: Defined) -> None:
    """Windows up to there don't count, later ones are owed; what has been claimed since isn't claimed again."""
    now = stage.store.snapshot().now
    earlier = [now - timedelta(seconds=seconds) for seconds in (90, 60, 30)]
    stage.set(counts_from=earlier[0])
    assert stage.known.since == earlier[0]
    assert stage.load_it() == r.Loaded(earlier[0], ANY, "new", "", earlier[0])
    assert isinstance(stage.claim_it(earlier[1]), r.Claimed)
    assert stage.set(counts_from=earlier[0]).same, "its cursor is further on"
    assert stage.set("two", counts_from=earlier[0]).version == 2
    assert (stage.known.since, stage.store.account(ENTRY).cursor) == (earlier[1], earlier[1])
    assert stage.set("two", counts_from=earlier[2]).version == 3, "the other scheduler has run on"
    assert isinstance(stage.load_it(), r.Loaded)
    account = stage.store.account(ENTRY)
    assert (account.cursor, account.since) == (earlier[2], earlier[2])
    assert list(account.open) == [earlier[1]], "it goes on to its outcome"
    assert stage.set("two", counts_from=earlier[2]).same
    assert stage.set("three", counts_from=now + timedelta(days=1)).version == 4
    assert stage.known.since == stage.known.at, "nothing counts from the future"
    stage.delete()
    made = stage.set(counts_from=earlier[0])
    assert stage.store.account(ENTRY).cursor == made.at, "what was deleted isn't owed"
