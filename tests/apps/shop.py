"""The app of docs/board.png: tasks as a shop has them, some of which go wrong."""

import time
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab

from celery_once_beat import OnceTask

app = Celery("shop", task_cls=OnceTask)
app.conf.update(
    timezone="Europe/Berlin",
    once_beat_claim_lease=1.0,
    once_beat_publish_timeout=1.0,
    once_beat_recovery_interval=0.3,
    once_beat_start_timeout=3.0,
    once_beat_tolerance=2.0,
    once_beat_catch_up="none",
)
ELSEWHERE = "a-queue-without-workers"
app.conf.beat_schedule = {
    "exchange-rates": {
        "task": "shop.rates",
        "schedule": timedelta(seconds=15),
        "options": {"queue": ELSEWHERE, "expires": 5},
    },
    "import-prices": {"task": "shop.prices", "schedule": timedelta(seconds=12)},
    "invoices": {"task": "shop.invoices", "schedule": timedelta(seconds=10)},
    "newsletter": {"task": "shop.newsletter", "schedule": timedelta(seconds=20), "options": {"queue": ELSEWHERE}},
    "payments": {"task": "shop.payments", "schedule": timedelta(seconds=6)},
    "stock-levels": {"task": "shop.stock", "schedule": timedelta(seconds=5)},
    "weekly-digest": {"task": "shop.digest", "schedule": timedelta(seconds=30)},
    "year-end-report": {
        "task": "shop.report",
        "schedule": crontab(minute=0, hour=3, day_of_month=31, month_of_year=12),
    },
}


@app.task(bind=True, max_retries=3)
def payments(self):
    if self.window.start.second % 12 == 0 and self.request.retries == 0:
        raise self.retry(countdown=8)


@app.task
def prices():
    raise ValueError("the supplier's list can't be read")


@app.task
def digest():
    time.sleep(25)


@app.task
def stock():
    time.sleep(1.5)


@app.task
def invoices():
    time.sleep(0.3)


@app.task
def rates():
    pass


@app.task
def newsletter():
    pass


@app.task
def report():
    pass
