"""An app of many entries, as tests/board_cost.py measures the board with: ``COUNT`` of them, each hourly."""

import os

from celery import Celery

from celery_once_beat import OnceTask

AREAS = ("billing", "mail", "reports", "search", "stock")

app = Celery("many", broker=os.environ["BROKER_URL"], task_cls=OnceTask)
app.conf.once_beat_redis_url = os.environ["STORE_URL"]
app.conf.beat_schedule = {
    f"{AREAS[number % len(AREAS)]}-{number:05}": {"task": "apps.many_app.work", "schedule": 3600.0}
    for number in range(int(os.environ["COUNT"]))
}


@app.task
def work():
    pass
