# proj.py
from celery import Celery
from celery_once_beat import OnceTask

app = Celery("proj", broker="redis://localhost", task_cls=OnceTask)
app.conf.beat_scheduler = "once"
app.conf.beat_schedule = {
    "report": {"task": "proj.report", "schedule": 10.0},
}


@app.task(bind=True)
def report(self):
    print(f"report for {self.window.start}")
