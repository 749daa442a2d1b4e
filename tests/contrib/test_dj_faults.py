"""What goes wrong under django-celery-beat's own scheduler when beat dies, and doesn't here."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

import pytest
from processes import wait_until
from shops import STOCK, Shop

from celery_once_beat.windows import parse_instant

pytestmark = pytest.mark.long


def sent(shop: Shop, *names: str) -> Counter[str]:
    """How often the tasks of these rows were executed."""
    return Counter(event["what"] for event in shop.ledger.read("start") if event["what"] in names)


def test_nothing_is_fired_again_after_a_sigkill(shop: Shop) -> None:
    """Stock writes ``last_run_at`` every 180 s: what ran since is due again. Here it is for people only."""
    shop.worker().wait_ready()
    names = ("first", "second", "third")
    fields = "task='apps.dj_shop.celery.stock', interval=every(3600), last_run_at=now(-7200)"
    for name in names:
        shop.orm(f"row({name!r}, args=json.dumps([{name!r}]), {fields})")
    stock = shop.beat("stock", scheduler=STOCK)
    wait_until(lambda: len(sent(shop, *names)) == 3, "all have run", 60)
    stock.kill()
    stock = shop.beat("stock again", scheduler=STOCK)
    wait_until(lambda: sum(sent(shop, *names).values()) == 5, "all but the first, after which it wrote, run again", 60)
    stock.kill()
    shop.orm("PeriodicTask.objects.all().delete()")

    names = ("one", "two", "three")
    for name in names:
        shop.orm(f"row({name!r}, args=json.dumps([{name!r}]), clocked=at(now(-5)), one_off=True)")
    beats = shop.beats()
    wait_until(lambda: len(sent(shop, *names)) == 3, "all have run", 60)
    for beat in beats:
        beat.kill()
    shop.orm("PeriodicTask.objects.update(enabled=True, last_run_at=None, total_run_count=0)")
    shop.beats()
    shop.wait_disabled(*names)
    assert set(sent(shop, *names).values()) == {1}
    shop.check_each_ran_once(*names)


def test_the_second_try(shop: Shop) -> None:
    """Moved here, back to stock, and here again: what stock has sent meanwhile isn't sent once more."""
    shop.worker().wait_ready()
    headers = json.dumps({"once": {"catch_up": "all", "grace": 3600}})
    shop.orm(f"row('tick', interval=every(1), headers={headers!r})")
    first = shop.beat("first").wait_ready()
    shop.wait_ran("tick")
    assert first.stop() == 0
    stopped = shop.account().cursor
    shop.wait_even()
    stock = shop.beat("stock", scheduler=STOCK)

    def last_run() -> datetime:
        return datetime.fromisoformat(shop.orm.row("tick")[2])

    wait_until(lambda: last_run() > stopped, "stock has sent it, and written that", 60)
    assert stock.stop() == 0
    last = last_run()
    shop.beat("second")
    wait_until(lambda: any(parse_instant(start) > last for start in shop.ran("tick")), "it goes on", 60)
    assert not [start for start in shop.ran("tick") if stopped < parse_instant(start) <= last]
