"""``celery once`` over a database's rows, and tasks that are sent after a commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from processes import wait_until
from shops import ONCE, Shop

ROWS = """
row("nightly", crontab=CrontabSchedule.objects.create(minute="30", hour="2", timezone="Asia/Tokyo"))
row("tick", interval=every(1))
row("one-off", interval=every(3600), one_off=True)
row("soon over", interval=every(60), expires=now(90))
row("wrong", interval=every(1), headers='{"once": {"catchup": "all"}}')
row("wrong args", interval=every(1), args="[")
"""
DUMP = """
result = [list(model.objects.order_by("pk").values_list())
          for model in (PeriodicTask, PeriodicTasks, IntervalSchedule, CrontabSchedule)]
"""


#: Nothing is overdue since the machine is busy.
PATIENT = {"CLAIM_LEASE": 10.0, "PUBLISH_TIMEOUT": 10.0, "START_TIMEOUT": 60.0, "LEASE": 15.0}


@pytest.mark.long
def test_commands_read_rows_and_write_nothing(new_shop: Callable[..., Shop]) -> None:
    """Neither to the database nor to Redis, also where rows are wrong."""
    shop = new_shop(**{f"CELERY_ONCE_BEAT_{name}": value for name, value in PATIENT.items()})
    shop.orm(ROWS)
    beats = shop.start()
    shop.wait_ran("tick", 2)
    shop.wait_loaded("nightly", "one-off")

    def look() -> Any:
        facts = json.loads(shop.once("status", "-S", ONCE, "--json"))
        return [beat["entries"] for beat in facts["beats"]] == [4, 4] and facts

    status = wait_until(look, "both beats have said that they have four entries", 60)
    entries = {entry["entry"]: entry for entry in status["entries"]}
    assert "did you mean 'catch_up'?" in entries["wrong"]["attention"][0]
    assert "row 'wrong args', args: found '['" in entries["wrong args"]["attention"][0]
    assert not any(entries[name]["attention"] for name in ("nightly", "tick", "one-off", "soon over"))
    assert entries["nightly"]["schedule"] == "30 2 * * * Asia/Tokyo"
    assert entries["tick"]["last"]["state"] == "done"
    shop.store.set_paused("tick", paused=True)
    for beat in beats:
        assert beat.stop() == 0
    for name in ("tick", "soon over"):
        shop.wait_recorded(name)

    def everything() -> Any:
        with shop.client() as client:
            keys = sorted(
                key for key in client.scan_iter() if key.startswith(b"once:") and key != b"once:workers"
            )  # who reports as they read
            return shop.orm(DUMP), {key: client.dump(key) for key in keys}

    before = everything()
    coming = json.loads(shop.once("next", "-S", ONCE, "one-off", "-n", "5", "--json"))
    assert [window["entry"] for window in coming] == ["one-off"]
    nightly = json.loads(shop.once("next", "-S", ONCE, "nightly", "-n", "1", "--json"))
    assert nightly[0]["local"][11:] == "02:30:00+09:00"
    shop.once("status", "-S", ONCE, exit_code=1)
    assert "wrong args" not in shop.audit()
    assert everything() == before


def test_a_task_that_is_sent_after_a_commit(shop: Shop) -> None:
    """The task base is Celery's own for Django too; what it sends has no window."""
    shop.orm("""
from celery.contrib.django.task import DjangoTask
from celery_once_beat import OnceTask
assert isinstance(work, DjangoTask) and isinstance(work, OnceTask)
with transaction.atomic():
    work.delay_on_commit("committed")
    work.apply_async_on_commit(args=["with options"])
    result = []
try:
    with transaction.atomic():
        work.delay_on_commit("rolled back")
        raise KeyError
except KeyError:
    work.delay("the last")
""")
    shop.worker().wait_ready()
    wait_until(lambda: shop.ledger.read("start", what="the last"), "all have run", 60)
    assert [event["what"] for event in shop.ledger.read("start")] == ["committed", "with options", "the last"]
    assert all("entry" not in event for event in shop.ledger.read())


CHECK = """
from django.core.checks import run_checks
found = [*run_checks(), *run_checks(tags=["database"], databases=["default"])]
result = [f"{each.id[17:]} {each.msg}" for each in found if each.id.startswith("celery_once_beat")]
"""
CHECKED = ["django.contrib.contenttypes", "django_celery_beat", "celery_once_beat.contrib.django"]


def test_check_names_wrong_rows(new_shop: Callable[..., Shop]) -> None:
    """As warnings, each with what to change: they stop no migration."""
    shop = new_shop(INSTALLED_APPS=CHECKED)
    assert shop.orm(CHECK) == []
    shop.orm(ROWS)
    options, arguments = shop.orm(CHECK)
    assert options.startswith("W003 'wrong' is left out: beat entry 'wrong', option 'once': unknown key 'catchup'")
    assert arguments.startswith("W003 'wrong args' is left out: row 'wrong args', args: found '['")


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"CELERY_TIMEZONE": "Europe/Berln"}, "E001 timezone: found 'Europe/Berln', expected the name of a time zone"),
        ({"CELERY_ONCE_BEAT_LEASE": "long"}, "E001 once_beat_lease: found 'long', expected a number of seconds"),
        ({"CELERY_BROKER_URL": "memory://", "CELERY_ONCE_BEAT_REDIS_URL": None}, "W001 once_beat_redis_url"),
    ],
)
def test_check_names_a_wrong_setting(new_shop: Callable[..., Shop], settings: dict[str, Any], found: str) -> None:
    """Once, however many rows there are; a Redis that isn't set is none where tests run."""
    shop = new_shop(INSTALLED_APPS=CHECKED, **settings)
    shop.orm("row('one', interval=every(1)), row('two', interval=every(2))")
    first, *more = shop.orm(CHECK)
    assert first.startswith(found)
    assert [each for each in more if not each.startswith("W002")] == []
