"""What goes wrong under django-celery-beat's own scheduler when beat dies, and doesn't here."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from processes import wait_until
from shops import STOCK, Shop

from celery_once_beat.windows import parse_instant

pytestmark = pytest.mark.long


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
