"""The app of docs/board*.png: entries as a shop has them. Nothing of it runs: tests/screenshot.py makes its past."""

from __future__ import annotations

import os
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab

from celery_once_beat import OnceTask

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"], task_cls=OnceTask)
app.conf.update(
    timezone="Europe/Berlin",
    once_beat_board_links={
        "Flower": "https://flower.example/task/{task_id}",
        "Logs": "https://logs.example/search?q={task_id}&from={start}",
    },
)

MINUTES = {
    "billing-charge": 20, "billing-dunning": 120, "billing-invoices": 30, "billing-reconcile": 60,
    "crm-dedupe": 120, "crm-sync": 15, "etl.load-orders": 60, "etl.load-users": 60,
    "mail-bounces": 60, "mail-newsletter": 30, "media-thumbs": 60, "media-transcode": 20,
    "search-reindex": 180, "search-suggest": 60, "shop-carts": 60, "shop-prices": 15, "shop-recommend": 120,
    "stock-forecast": 240, "stock-levels": 20, "tax-vat": 360,
}  # fmt: skip
NIGHTLY = {"reports-daily": 2, "reports-kpi": 3, "infra:backup": 1, "infra:rotate-logs": 4, "mail-digest": 6}


def task_of(name: str) -> str:
    return f"shop.{name.replace(':', '-').replace('.', '-').partition('-')[0]}"


app.conf.beat_schedule = {
    **{name: {"task": task_of(name), "schedule": timedelta(minutes=every)} for name, every in MINUTES.items()},
    **{name: {"task": task_of(name), "schedule": crontab(minute=0, hour=hour)} for name, hour in NIGHTLY.items()},
    "year-end-report": {
        "task": "shop.reports",
        "schedule": crontab(minute=0, hour=3, day_of_month=31, month_of_year=12),
    },
}


def nothing():
    pass


for _name in {task_of(name) for name in app.conf.beat_schedule}:
    app.task(name=_name)(nothing)
