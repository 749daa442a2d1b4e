"""From when a row's windows count: it was made, enabled, renamed, is to run once more. Beats without their threads."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from servers import without_shard

from celery_once_beat import OnceTask
from celery_once_beat.clock import steady
from celery_once_beat.schedules import check_words
from celery_once_beat.store import Ending, Finished, Store, shard_of
from celery_once_beat.windows import Window, WindowKey, format_instant

HOUR = timedelta(hours=1)


def utcnow() -> datetime:
    return datetime.now(timezone.utc)


def ago(seconds: float) -> datetime:
    return utcnow() - timedelta(seconds=seconds)


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    with Celery("tests", broker="memory://", set_as_current=False, task_cls=OnceTask) as app:
        app.conf.update(once_beat_redis_url=redis_url, timezone="UTC", result_expires=None)

        @app.task(name="work", shared=False)
        def work() -> None:
            pass

        yield app


@pytest.fixture
def new_beat(rows: Any, app: Celery, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """``new_beat()``: one that does a step when it is told to."""
    from celery_once_beat.contrib.django import OnceDatabaseScheduler
    from celery_once_beat.contrib.django.database import Database

    monkeypatch.setattr(Database, "start", lambda _: None)
    monkeypatch.setattr("celery_once_beat.contrib.django.source.SILENT", 3600.0)

    class Beat(OnceDatabaseScheduler):
        def look(self, times: int = 1) -> None:
            """Read what changed, and see to it."""
            for _ in range(times):
                self._database._round()
                assert not self._database.trouble
                self._refresh()
                self._sweep()

        def looked(self, seconds: float, read: float | None = None) -> None:
            """Its last look was so long ago, and it had read the rows then, or ``read`` seconds ago."""
            seen = self._database.seen
            at, read_at = seen.at - seconds, seen.at - (seconds if read is None else read)
            self._database.seen = seen._replace(at=at, read=(read_at, read_at))
            self._refresh()

        def claim(self) -> None:
            self._claim_due()

        def row(self, name: str = "row") -> Any:
            return self.entries.get(name)

    return lambda: Beat(app)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look reads the rows, also where nothing says that they changed."""
    monkeypatch.setattr("celery_once_beat.contrib.django.database._ANYWAY", -1.0)


def make(rows: Any, window: datetime, name: str = "row", **fields: Any) -> Any:
    """A row with a window then, and one each hour before and after."""
    from django_celery_beat.models import IntervalSchedule

    hourly = IntervalSchedule.objects.get_or_create(every=3600, period="seconds")[0]
    once = {"anchor": window.isoformat()}
    return rows.objects.create(name=name, task="work", interval=hourly, headers=json.dumps({"once": once}), **fields)


def look(*beats: Any, claim: bool = False) -> None:
    """One after the other."""
    for beat in beats:
        beat.look()
        if claim:
            beat.claim()


def edited(rows: Any, **fields: Any) -> Any:
    row = rows.get()
    for field, value in fields.items():
        setattr(row, field, value)
    return row


def save(rows: Any, **fields: Any) -> None:
    edited(rows.objects, **fields).save()


def update(rows: Any, **fields: Any) -> None:
    """As the admin's actions do."""
    from django_celery_beat.models import PeriodicTasks

    rows.objects.update(**fields)
    PeriodicTasks.update_changed()


def update_alone(rows: Any, **fields: Any) -> None:
    rows.objects.update(**fields)


def bulk_update(rows: Any, **fields: Any) -> None:
    rows.objects.bulk_update([edited(rows.objects, **fields)], [*fields])


def raw(rows: Any, **fields: Any) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        for field, value in fields.items():
            cursor.execute(f"UPDATE django_celery_beat_periodictask SET {field} = %s", [value])


WAYS = {way.__name__: way for way in (save, update, update_alone, bulk_update, raw)}


def execute(store: Store, start: datetime, entry: str = "row") -> None:
    begun = store.begin(WindowKey(entry, start), "worker", 30.0)
    assert store.finish(Ending(WindowKey(entry, start), "worker", begun.fence, "done")) == Finished()


# -- made, enabled, renamed


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("edit", ["made", "enabled", "named"])
def test_nothing_from_before_it_was_there_runs(rows: Any, new_beat: Any, store: Store, edit: str, way: str) -> None:
    """Made, enabled or named right after a window, between two looks, in whatever way: that window isn't its own."""
    beat, window = new_beat(), ago(5)
    if edit != "made":
        make(rows, window, "row" if edit == "enabled" else "old", enabled=edit == "named")
    beat.look()
    beat.looked(1200)
    if edit == "made":
        row = make(rows, window)
        if way in ("bulk_update", "raw"):
            rows.objects.all().delete()
            rows.objects.bulk_create([row])  # nothing says that something changed
    elif edit == "enabled":
        WAYS[way](rows, enabled=True)
    else:
        WAYS[way](rows, name="row")
    beat.look(2)
    assert store.account("row").cursor > window
    assert beat.row().next == window + HOUR


@pytest.mark.parametrize("edit", ["made", "enabled", "enabled by an action"])
def test_what_it_owes_since_it_was_there_runs(rows, new_beat, store, monkeypatch, edit: str) -> None:
    """A window right after it was made or enabled is seen late, and runs, also where an action wrote no date."""
    beat, window = new_beat(), ago(5)
    if edit != "made":
        make(rows, window, enabled=False)
    beat.look()
    beat.looked(1200)
    if edit == "made":
        make(rows, window)
    if edit == "enabled by an action":
        monkeypatch.setattr("django_celery_beat.models.now", lambda: ago(600))
        update(rows, enabled=True, date_changed=ago(3600))
    else:
        update(rows, enabled=True, date_changed=ago(600))
    look(beat, claim=True)
    assert [*store.account("row").open] == [window]


@pytest.mark.usefixtures("always")
def test_who_sees_a_row_late_takes_nothing_back(rows: Any, new_beat: Any, store: Store) -> None:
    """One beat has read what left no trace; another, which reads it later, doesn't take it for absent until then."""
    first, second, window = new_beat(), new_beat(), ago(5)
    make(rows, window, one_off=True, enabled=False)
    first.look()
    first.looked(1200)
    second.look()
    second.looked(0, read=1200)
    rows.objects.update(enabled=True, date_changed=ago(600))
    look(first, claim=True)
    execute(store, window)
    since = store.account("row").since
    second.look()
    assert store.account("row").since == since
    assert second.row().next is None


def late(rows: Any, beats: Sequence[Any], *names: str, **fields: Any) -> datetime:
    """Rows that all of these have, and their window, which none has claimed yet."""
    look(*beats)
    for beat in beats:
        beat.looked(2400)
    window = ago(10)
    for name in names or ("row",):
        make(rows, window, name, **fields)
    update(rows, date_changed=ago(1800))
    look(*beats)
    return window


@pytest.mark.parametrize("kind", ["one-off", "clocked"])
def test_a_one_off_has_one_window_by_whatever_name(rows: Any, new_beat: Any, store: Store, kind: str) -> None:
    """Renamed while its window is executed: it is disabled as if it had kept its name."""
    from django_celery_beat.models import ClockedSchedule

    beat = new_beat()
    if kind == "one-off":
        window = late(rows, [beat], "old", one_off=True)
    else:
        window = ago(10)
        at = ClockedSchedule.objects.create(clocked_time=window)
        rows.objects.create(name="old", task="work", clocked=at, one_off=True)
        beat.look()
    beat.claim()
    save(rows, name="new")
    beat.look(2)
    assert not rows.objects.get().enabled
    assert store.account("new") is None
    execute(store, window, "old")
    if kind == "one-off":
        save(rows, enabled=True)
        look(beat, new_beat(), beat)
        assert rows.objects.get().enabled, "it has one window more"
        assert store.account("new").since > window


# -- once more


@pytest.fixture
def had_its_window(rows: Any, new_beat: Any, store: Store) -> Any:
    """A beat with a one-off that has had its window and isn't disabled yet; and that window."""
    beat = new_beat()
    window = late(rows, [beat], one_off=True)
    beat.claim()
    execute(store, window)
    beat._sweep()
    return beat, window


@pytest.mark.parametrize("way", WAYS)
def test_a_one_off_that_is_enabled_again_while_no_beat_runs(rows, new_beat, store, had_its_window, way: str) -> None:
    """The beat that disabled it died before any saw it disabled. It has one window more, however many beats find it."""
    beat, window = had_its_window
    beat._database._round()
    assert not rows.objects.get().enabled
    WAYS[way](rows, enabled=True)
    first, second = new_beat(), new_beat()
    look(first, second, first, second)
    account = store.account("row")
    assert account.cursor == account.since > window
    for other in (first, second, first):
        other.look()
        assert other.row().next == window + HOUR
    assert rows.objects.get().enabled
    assert store.account("row").since == account.since


@pytest.mark.long
def test_a_one_off_that_is_made_anew_while_it_is_executed(rows: Any, new_beat: Any, store: Store) -> None:
    """By its own task, say, with the same name and schedule: it is another one, which has its own window."""
    first, second = new_beat(), new_beat()
    window = late(rows, [first, second], one_off=True)
    first.claim()
    rows.objects.all().delete()
    make(rows, window, one_off=True)
    look(first, second)
    execute(store, window)
    since = store.account("row").since
    for beat in (first, second, first, second):
        beat.look()
        assert beat.row().next == window + HOUR
    assert store.account("row").since == since > window
    assert rows.objects.get().enabled


@pytest.mark.parametrize("edit", ["none", "saved"])
def test_a_one_off_that_no_beat_has_disabled_yet(rows, new_beat, store, had_its_window, edit: str, caplog) -> None:
    """All beats died before. It has had its window: the next one disables it, whatever else was edited."""
    caplog.set_level(logging.INFO)
    _, window = had_its_window
    if edit == "saved":
        save(rows, description="edited")
    beat = new_beat()
    beat.look(3)
    assert not rows.objects.get().enabled
    assert store.account("row").cursor == window
    said = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "row_disabled"]
    assert said == ["once: row 'row' has had its one window: it is disabled; enabled again it has one more"]


def test_a_one_off_is_disabled_only_with_the_stores_word(rows: Any, store: Store, had_its_window: Any) -> None:
    """Redis is away, or knows better, when the row is written: it stays as it is."""
    beat, _ = had_its_window
    entry = beat.row().source
    before = rows.objects.get().date_changed
    beat._database.disable(entry, lambda: False)
    beat._database._round()
    row = rows.objects.get()
    assert (row.enabled, row.date_changed) == (True, before)
    beat.look(2)
    assert not rows.objects.get().enabled


@pytest.mark.long
def test_a_key_of_the_old_name_that_is_not_ours_stops_nobody(rows: Any, new_beat: Any, store: Store) -> None:
    """What stands there says nothing of the row, which goes on by its new name; nor does it stop the beat."""
    beat = new_beat()
    late(rows, [beat], "old")
    beat.looked(1200)
    save(rows, name="new")
    with redis.Redis.from_url(store.settings.redis_url) as client:
        client.set(store.entry_key("old"), "not ours", ex=600)
    beat.look(2)
    assert store.account("new") is not None


@pytest.mark.long
def test_a_renamed_row_waits_for_what_is_known_of_its_old_name(rows, new_beat, app, store) -> None:
    """The node of a cluster that has the old name is away: its window doesn't run once more by the new one."""
    new = "new, elsewhere"
    assert shard_of("old") != shard_of(new)
    first = new_beat()
    window = late(rows, [first], "old")
    first.claim()
    store.leave(first.beat_id)
    with without_shard(store.settings.redis_url, shard_of("old")) as app.conf.once_beat_redis_url:
        beat = new_beat()
        beat.look()
        beat.looked(1200)
        save(rows, name=new)
        update(rows, date_changed=ago(900))  # before its window
        for _ in range(2):
            beat.look()
            beat.entries.end_rests(steady() + 3600)  # it has rested for long enough
        beat.look()
        assert store.account(new) is None
        with redis.Redis.from_url(store.settings.redis_url) as client:
            client.execute_command("ACL", "SETUSER", "part", "allkeys")
        beat.look()
        assert store.account(new).cursor == window


def test_a_part_of_the_store_that_is_away_stops_only_its_own(
    rows: Any, new_beat: Any, beat_that_left: Any, app: Celery, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """As where one node of a cluster is away: other rows go on, and the beat tries again soon, not at once.

    A row with a new name waits: the node may have its old one.
    """
    shards = {shard_of(name): name for name in map("row-{}".format, range(40))}
    away, here, new = shards.popitem(), shards.popitem(), shards.popitem()
    window = ago(5)
    for _, name in (away, here):
        make(rows, window, name, one_off=True)
    beat_that_left()
    make(rows, window, new[1])
    with without_shard(store.settings.redis_url, away[0]) as app.conf.once_beat_redis_url:
        beat = new_beat()
        beat._database._round()
        assert beat.tick() > 0
        assert beat.row(here[1]).cursor is not None
        assert beat.row(away[1]).cursor is beat.row(new[1]).cursor is None
        assert [r.message for r in caplog.records if getattr(r, "action", "") == "store_away"]


# -- while no beat ran


@pytest.fixture
def beat_that_left(new_beat: Any, store: Store) -> Callable[[], Any]:
    """``beat_that_left()``: one that looked, and ended."""

    def run() -> Any:
        beat = new_beat()
        beat.look()
        store.leave(beat.beat_id)
        return beat

    return run


@pytest.fixture
def cursor(rows: Any, beat_that_left: Any, store: Store, redis_url: str) -> datetime:
    """Of a row that a beat has loaded, of which no window has been claimed for hours."""
    make(rows, ago(600))
    beat_that_left()
    cursor = ago(5 * 3600)
    with redis.Redis.from_url(redis_url) as client:
        client.hset(store.entry_key("row"), mapping=dict.fromkeys(("born", "since", "cursor"), format_instant(cursor)))
    return cursor


@pytest.mark.parametrize("who", ["stock", "ours", "ours, edited since"])
def test_what_another_scheduler_sent_meanwhile(rows: Any, beat_that_left: Any, cursor: datetime, who: str) -> None:
    """It isn't sent again. What beats of ours write when they are late loses no window that is owed."""
    if who == "stock":
        save(rows, last_run_at=ago(2 * 3600))  # as its ModelEntry does
        assert beat_that_left().row().cursor == rows.objects.get().last_run_at
        return
    rows.objects.update(date_changed=cursor)
    late = beat_that_left()
    late.on_published(late.row(), Window("row", cursor, None), again=False)
    late.sync()
    late._database._round()
    assert rows.objects.get().last_run_at == cursor
    if "edited" in who:
        save(rows, description="x")
    assert beat_that_left().row().cursor == cursor


@pytest.mark.usefixtures("cursor")
@pytest.mark.parametrize("way", ["switched off", "deleted"])
def test_a_beat_that_starts_without_a_row_ends_its_windows(rows, beat_that_left, store, way: str) -> None:
    """No beat ran when the row left, nor when it came back; one ran between. Windows of that time aren't owed."""
    if way == "deleted":
        rows.objects.all().delete()
    else:
        rows.objects.update(enabled=False)
    before = utcnow()
    beat_that_left()
    assert store.account("row").fingerprint == "-"
    if way == "deleted":
        make(rows, ago(600))
    else:
        rows.objects.update(enabled=True)
    assert beat_that_left().row().cursor > before


def test_a_row_that_is_switched_off_and_on_without_a_beat(rows: Any, beat_that_left: Any, cursor: datetime) -> None:
    """Nobody saw it: what it owes is late."""
    rows.objects.update(enabled=False)
    rows.objects.update(enabled=True)
    assert beat_that_left().row().cursor == cursor


def rename(rows: Any, way: str = "save", **names: str) -> None:
    """Give rows new names, old → new, in one transaction. No two rows may have one name, not even within it."""
    from django.db import transaction
    from django_celery_beat.models import PeriodicTasks

    with transaction.atomic():
        found = {new: rows.objects.get(name=old) for old, new in names.items()}
        for new, row in found.items():
            rows.objects.filter(pk=row.pk).update(name=f"on its way to {new}")
        for new, row in found.items():
            row.name = new
            row.save() if way == "save" else rows.objects.filter(pk=row.pk).update(name=new)
        PeriodicTasks.update_changed()


def pause(store: Store, *names: str) -> None:
    """Pause a by anna, b by bert."""
    for name in names:
        assert store.set_paused(name, check_words({"a": "anna", "b": "bert"}[name], ""), paused=True)


def pause_of(store: Store, name: str) -> str:
    account = store.account(name)
    return account.paused_by if account.paused else ""


def with_name(old: str, **fields: Any) -> Callable[[Any], None]:
    """Save the row of this name with these fields."""
    return lambda rows: edited(rows.objects.filter(name=old), **fields).save()


def by(way: str, **names: str) -> Callable[[Any], None]:
    return lambda rows: rename(rows, way, **names)


def deleted(name: str) -> Callable[[Any], None]:
    return lambda rows: rows.objects.get(name=name).delete()


def made(name: str) -> Callable[[Any], None]:
    return lambda rows: make(rows, ago(600), name)


#: Rows, of which anna has paused a, and bert b; what happens to them from look to look; whose pauses they have then.
PAUSES: dict[str, tuple[str, list[list[Callable[[Any], object]]], dict[str, str]]] = {
    "there and back": ("a", [[by("save", a="b")], [by("update", b="a")]], {"a": "anna"}),
    "two change names": ("ab", [[by("save", a="b", b="a")]], {"a": "bert", "b": "anna"}),
    "two, by an action": ("ab", [[by("update", a="b", b="a")]], {"a": "bert", "b": "anna"}),
    "three change names": ("abc", [[by("save", a="b", b="c", c="a")]], {"a": "", "b": "anna", "c": "bert"}),
    "made again": ("a", [[deleted("a"), made("a")]], {"a": ""}),
    "the name of one that is deleted": ("ab", [[deleted("a"), by("save", b="a")], [made("b")]], {"a": "bert", "b": ""}),
    "renamed while it is left out": (
        "a", [[with_name("a", kwargs="{")], [with_name("a", name="b")], [with_name("b", kwargs="{}")]], {"b": "anna"}
    ),
    "renamed while it is switched off": (
        "a", [[with_name("a", enabled=False)], [with_name("a", name="b")], [with_name("b", enabled=True)]],
        {"b": "anna"},
    ),
    "another has its name meanwhile": (
        "ab", [[with_name("a", enabled=False, name="off"), by("save", b="a")], [with_name("off", enabled=True)]],
        {"a": "bert", "off": "anna"},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("case", PAUSES)
def test_a_pause_goes_along_with_its_row(rows: Any, new_beat: Any, store: Store, case: str, lives: bool) -> None:
    """In whatever way it is renamed, and whoever had its name; two beats see it one after the other, or start late."""
    names, steps, expected = PAUSES[case]
    for name in names:
        make(rows, ago(600), name)
    beats: list[Any] = []

    def see() -> None:
        if not (lives and beats):
            beats[:] = [new_beat(), new_beat()]
        for beat in beats * 3:  # it is seen, it waits until all know, it is loaded
            beat.look()
            beat.entries.end_rests(math.inf)
        for beat in () if lives else beats:
            store.leave(beat.beat_id)

    see()
    pause(store, *names[:2])
    for step in steps:
        for edit in step:
            edit(rows)
        see()
    assert {name: pause_of(store, name) for name in expected} == expected


def test_windows_of_rows_that_swap_names_run_once(rows: Any, new_beat: Any, store: Store) -> None:
    """Who has seen it claims nothing of both until all have: what ran by one name doesn't run by the other."""
    slow, quick = new_beat(), new_beat()
    window = late(rows, [slow, quick], "a", "b")
    rename(rows, a="b", b="a")
    update(rows, date_changed=ago(900))  # before their windows
    look(quick, quick, claim=True)
    assert not store.account("a").open | store.account("b").open
    slow.claim()
    assert [[*store.account(name).open] for name in "ab"] == [[window], [window]]
    look(slow, quick, slow, quick, claim=True)
    for beat in (slow, quick):
        assert [beat.row(name).cursor for name in "ab"] == [window, window]
    assert [[*store.account(name).open] for name in "ab"] == [[window], [window]]


def test_a_new_row_by_the_name_of_one_that_was_renamed(rows: Any, new_beat: Any, store: Store) -> None:
    """It waits as well: a beat that has the other one by that name still claims its windows, and may go on to."""
    slow, quick = new_beat(), new_beat()
    window = late(rows, [slow, quick], "a")
    quick.looked(1200)
    rename(rows, a="b")
    make(rows, window, "a")
    update(rows, date_changed=ago(900))  # before their windows
    quick.look(3)
    assert store.account("b") is None
    slow.claim()
    assert [*store.account("a").open] == [window]
    slow.looked(1200)
    look(slow, quick, slow, quick, claim=True)
    assert store.account("b").cursor == window
    assert not store.account("b").open
    assert slow.row("a").cursor == quick.row("a").cursor == window


@pytest.mark.parametrize("step", ["left", "loaded one"])
def test_a_beat_that_dies_while_rows_swap_names(rows, beat_that_left, new_beat, store, monkeypatch, step: str) -> None:
    """After it left their old names, or loaded one of the two: the next beat finds what both had."""
    for name in "ab":
        make(rows, ago(600), name)
    beat_that_left()
    pause(store, "a", "b")
    rename(rows, a="b", b="a")
    beat = new_beat()
    load_many = beat.store.load_many
    most = 0 if step == "left" else 1

    def dies(requests: Any) -> Any:
        load_many([*requests][:most])
        raise KeyboardInterrupt

    monkeypatch.setattr(beat.store, "load_many", dies)
    with pytest.raises(KeyboardInterrupt):
        beat.look()
    store.leave(beat.beat_id)
    new_beat().look()
    assert (pause_of(store, "a"), pause_of(store, "b")) == ("bert", "anna")


@pytest.mark.parametrize("late", ["the first", "the second", "both"])
def test_a_row_that_is_renamed_twice_at_once(rows: Any, new_beat: Any, store: Store, late: str) -> None:
    """Before every beat has seen its second name, or before some have seen even that."""
    make(rows, ago(600), "a")
    beats = [new_beat(), new_beat()]
    look(*beats)
    pause(store, "a")
    rename(rows, a="c")
    look(*{"the first": beats[1:], "the second": beats[:1], "both": []}[late])
    rename(rows, c="d")
    look(*beats * 3)
    assert pause_of(store, "d") == "anna"
    assert store.account("c") is None
