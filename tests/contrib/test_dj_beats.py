"""Two beats and a worker over one database, whose rows are edited while they run."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from processes import wait_until
from shops import Shop

from celery_once_beat import Schedules
from celery_once_beat.windows import format_instant, parse_instant

pytestmark = pytest.mark.long

SECOND = timedelta(seconds=1)


@pytest.fixture(params=["sqlite", "postgres"])
def any_shop(request: pytest.FixtureRequest, new_shop: Callable[..., Shop]) -> Shop:
    """A project, once on each kind of database."""
    return new_shop(request.param)


def utcnow() -> datetime:
    return datetime.now(timezone.utc)


def pass_time(seconds: float) -> None:
    until = utcnow() + seconds * SECOND
    wait_until(lambda: utcnow() > until, f"{seconds} s pass", seconds + 5)


def ran_after(shop: Shop, entry: str, moment: datetime) -> list[datetime]:
    """The windows after it that are done; those before it may be recorded later."""
    return [start for start in map(parse_instant, shop.ran(entry)) if start > moment]


def test_rows_that_are_edited(any_shop: Shop) -> None:
    """Both beats see each change; nothing runs early, twice or late for it, and all accounts balance."""
    shop = any_shop
    shop.orm("row('tick', interval=every(1), kwargs='{\"what\": 1}'); row('other', interval=every(1))")
    shop.start()
    shop.wait_ran("tick", 2)
    shop.wait_loaded("tick", "other")

    shop.orm("edit('tick', kwargs='{\"what\": 2}')")
    wait_until(lambda: shop.ledger.read("start", what=2), "other arguments", 60)
    assert shop.account().born == shop.account().since, "the definition is the same"

    before = shop.account().since
    shop.orm("edit('tick', interval=every(2))")
    wait_until(lambda: shop.account().since > before, "another interval", 60)
    shop.wait_loaded("tick")
    since = shop.account().since
    shop.wait_ran("tick", len(shop.ran("tick")) + 2)
    later = [start for start in shop.ran("tick") if parse_instant(start) > since]
    assert later
    assert all(parse_instant(start).timestamp() % 2 == 0 for start in later)

    shop.orm("edit('tick', enabled=False)")
    shop.wait_left("tick")
    left = utcnow()
    pass_time(5)
    enabled = utcnow()
    shop.orm("edit('tick', enabled=True)")
    again = wait_until(lambda: len(ran_after(shop, "tick", left)) >= 2 and ran_after(shop, "tick", left), "it runs", 60)
    shop.wait_loaded("tick")
    assert again[0] > enabled - 3 * SECOND, "what it was disabled for isn't run"
    assert not shop.ledger.read("missed", entry="tick")

    shop.orm("PeriodicTask.objects.get(name='tick').delete(); row('new', interval=every(1))")
    shop.wait_ran("new", 2)
    shop.wait_left("tick")
    for entry in ("new", "other"):
        shop.store.set_paused(entry, paused=True)
    shop.wait_even()
    shop.check_each_ran_once("tick", "other", "new")
    other = [parse_instant(start) for start in shop.ran("other")]
    assert other == [other[0] + n * SECOND for n in range(len(other))], "edits of others cost it no window"


ROWS = """
row("soon", clocked=at(now(5)), one_off=True)
row("late", clocked=at(now(-20)), one_off=True)
row("had its run", clocked=at(now(-20)), one_off=True, last_run_at=now(-19), total_run_count=1)
row("one-off", interval=every(1), one_off=True, last_run_at=now(-19), total_run_count=57)
row("dies", task="apps.dj_shop.celery.deadly", queue="deadly", clocked=at(now(-1)), one_off=True)
row("expired", interval=every(1), expires=now(-60))
row("disabled", interval=every(1), enabled=False)
row("with headers", interval=every(2), headers='{"mine": 1, "once": {"catch_up": "all", "grace": 3600}}')
row("wrong once", interval=every(1), headers='{"once": {"catchup": "all"}}')
row("wrong args", interval=every(1), args="[1")
row("no list", interval=every(1), args='{"a": 1}')
row("wrong cron", crontab=CrontabSchedule.objects.create(minute="90"))
row("no schedule", interval=every(1))
PeriodicTask.objects.filter(name="no schedule").update(interval=None)
PeriodicTasks.update_changed()
"""
#: Its second window has ten seconds to be executed in: its messages expire with it.
BOUNDED = """
begins = now(10)
row("bounded", interval=every(10), start_time=begins, expires=begins + timedelta(seconds=19.9))
result = begins
"""
WRONG = {
    "wrong once": r"beat entry 'wrong once', option 'once': unknown key 'catchup' \(did you mean 'catch_up'\?\)",
    "wrong args": r"row 'wrong args', args: found '\[1', expected JSON",
    "no list": "row 'no list', args: found .*, expected a list",
    "wrong cron": "row 'wrong cron': ValueError.*90 > 59",
    "no schedule": "row 'no schedule' has no schedule",
}
ONE_OFFS = ("soon", "late", "had its run", "one-off", "dies")


def test_rows_of_all_kinds(any_shop: Shop) -> None:
    """One-offs have one window and are disabled once; bounds bound; wrong rows are named and stop no other."""
    shop = any_shop
    worker, mortal = shop.worker(), shop.worker("mortal", extra_args=["-Q", "deadly"])
    for proc in (worker, mortal):
        proc.wait_ready()
    shop.orm(ROWS)
    beats = shop.beats()
    shop.wait_loaded("with headers")
    begins = datetime.fromisoformat(shop.orm(BOUNDED))
    mortal.wait(60)
    assert "dies" in shop.names(), "as long as it owes its outcome"
    shop.worker("another", extra_args=["-Q", "deadly"])
    shop.wait_disabled(*ONE_OFFS)
    shop.wait_ran("bounded", 2)
    shop.wait_ran("with headers", 2)
    shop.store.set_paused("with headers", paused=True)
    shop.wait_even()

    assert [len(shop.ran(name)) for name in ONE_OFFS] == [1, 1, 0, 1, 1]
    assert len(shop.ledger.read("start", entry="dies")) == 2
    assert shop.ran("bounded") == [format_instant(begins + n * SECOND) for n in (0, 10)]
    wait_until(lambda: utcnow() > begins + 22 * SECOND, "the window after its end", 60)
    assert shop.outcomes("bounded") == {"done": 2}
    assert not shop.ran("expired")
    assert not shop.ran("disabled")
    sent = shop.ledger.read("start", entry="with headers")[0]["headers"]
    assert (sent["mine"], sent["periodic_task_name"]) == (1, "with headers")
    assert "once" not in sent
    shop.check_each_ran_once(*ONE_OFFS, "bounded", "with headers")
    logs = [beat.log for beat in beats]
    for name in ONE_OFFS:
        said = [len(re.findall(f"row '{name}' has had its one window", log)) for log in logs]
        assert sum(said) == 1, name
    for name, why in WRONG.items():
        assert [len(re.findall(f"entry '{name}' is left out: {why}", log)) for log in logs] == [1, 1], name
    assert all("Traceback" not in log for log in logs)

    shop.orm('edit(\'wrong once\', headers=\'{"once": {"catch_up": "all"}}\')')
    shop.wait_ran("wrong once")


#: Rows 0 and 1 change names, and rows 2 and 3.
SWAP = """
with transaction.atomic():
    names = dict(PeriodicTask.objects.values_list("name", "pk"))
    for name, pk in names.items():
        PeriodicTask.objects.filter(pk=pk).update(name=f"on its way, {name}")
    for name, pk in names.items():
        other = {"row-0": "row-1", "row-1": "row-0", "row-2": "row-3", "row-3": "row-2"}[name]
        found = PeriodicTask.objects.get(pk=pk)
        found.name = other
        found.save()
"""


def test_rows_that_swap_names(any_shop: Shop) -> None:
    """No window of a row runs by both names, and the pause of one goes along; also where a beat is killed meanwhile."""
    shop = any_shop
    names = [f"row-{number}" for number in range(4)]
    for number, name in enumerate(names):
        shop.orm(f"row('{name}', interval=every(1), kwargs='{{\"what\": {number}}}')")
    beats = shop.start()
    shop.wait_loaded(*names)
    shop.store.set_paused("row-2", paused=True)
    for paused, other in (("row-3", "row-2"), ("row-2", "row-3"), ("row-3", "row-2")):
        shop.orm(SWAP)
        if paused == "row-2":
            beats[0].kill()
            shop.count_as_gone(beats[0])
        wait_until(lambda paused=paused: shop.account(paused).paused, f"{paused} is paused by now", 60)
        assert not shop.account(other).paused
        for what in (0, 1):
            entry = names[what ^ (paused == "row-3")]
            number = len(shop.ledger.read("start", what=what, entry=entry))
            wait_until(
                lambda what=what, entry=entry, number=number: (
                    len(shop.ledger.read("start", what=what, entry=entry)) >= number + 2
                ),
                f"row {what} runs as {entry}",
                60,
            )
    for name in names:
        shop.store.set_paused(name, paused=True)
    shop.wait_even()
    for what in range(4):
        starts = [event["start"] for event in shop.ledger.read("start", what=what)]
        assert len({*starts}) == len(starts), what
    shop.check_each_ran_once(*names)
    assert not any("Traceback" in beat.log for beat in beats)


@pytest.mark.parametrize("when", ["anywhere", "in the middle of a tick"])
def test_a_beat_that_stood_still_looks_first(shop: Shop, tmp_path: Path, when: str) -> None:
    """What was disabled meanwhile doesn't run, what was made does."""
    shop.orm("""row('tick', interval=every(1), headers='{"once": {"catch_up": "all"}}')""")
    shop.worker().wait_ready()
    freeze = tmp_path / "freeze"
    beat = shop.beat(PATIENT="1", FREEZE=str(freeze))
    shop.wait_ran("tick", 2)
    if when == "anywhere":
        shop.stand_still(beat)
    else:
        freeze.touch()
        shop.stand_still(beat, beat.wait_still)
        freeze.unlink()
    disabled = utcnow()
    shop.orm("edit('tick', enabled=False); row('new', interval=every(1))")
    pass_time(5)  # and no more: after 15 s without an answer the database would count as away
    beat.resume()
    shop.wait_ran("new", 2)
    assert parse_instant(shop.ran("tick")[-1]) <= disabled
    assert "the database" not in beat.log


def test_a_clocked_row_that_is_moved_to_the_past(shop: Shop) -> None:
    """Before its first sight: what was looked at is over. It is named, and not taken for one that has run."""
    shop.orm("row('late', clocked=at(now(3600)), one_off=True); row('tick', interval=every(1))")
    shop.worker().wait_ready()
    beat = shop.beat()
    shop.wait_ran("tick", 1)
    shop.orm("edit('late', clocked=at(now(-60)))")
    beat.wait_log("row 'late' isn't run: ", 60)
    shop.wait_ran("tick", len(shop.ran("tick")) + 5)
    assert len(re.findall("row 'late' isn't run", beat.log)) == 1
    assert not shop.ran("late")
    assert shop.orm.row("late")[0], "it is enabled"
    shop.orm("edit('late', clocked=at(now(10)))")
    shop.wait_ran("late", 1)
    shop.wait_disabled("late")


def test_schedules_that_are_set_at_run_time_run_beside_rows(any_shop: Shop) -> None:
    """A row of the same name goes first; edits of rows, and one-offs, leave those that were set alone."""
    shop = any_shop
    shop.orm("row('tick', interval=every(1))")
    beats = shop.start()
    schedules = Schedules(url=shop.store_url)
    schedules.set("set", task="apps.dj_shop.celery.work", schedule=1.0)
    shop.wait_ran("set", 2)
    shop.wait_ran("tick", 2)
    schedules.set("tick", task="apps.dj_shop.celery.work", schedule=1.0)
    shop.orm("edit('tick', kwargs='{\"what\": 2}')")
    wait_until(lambda: shop.ledger.read("start", what=2), "other arguments", 60)
    shop.wait_ran("set", len(shop.ran("set")) + 2)
    wait_until(lambda: any("schedule 'tick' doesn't run" in beat.log for beat in beats), "a beat says so", 60)
    schedules.delete("set")
    schedules.delete("tick")
    schedules.close()
    assert not any("Traceback" in beat.log for beat in beats)
