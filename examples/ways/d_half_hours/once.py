"""Each user has schedules of their own. A web handler sets them, also while the nodes run."""

import json
import sys
import time
from threading import Thread
from urllib.request import Request, urlopen
from wsgiref.simple_server import make_server

from celery import Celery

from celery_once_beat import OnceTask
from examples.ways import node

from . import HALF_HOUR

app = Celery("d_half_hours", broker=node.URL, task_cls=OnceTask)
app.conf.update(node.SETTINGS)


@app.task(bind=True, name=f"{__package__}.once.mail")
def mail(self, user):
    with node.run(user, self.window.start):
        time.sleep(0.6)


@app.task(name=f"{__package__}.once.summary")
def summary(user):
    print(f"{user}'s summary")


def choose(users):
    """What the users' browsers do."""
    from .web import application  # noqa: PLC0415  # the nodes don't need it

    with make_server("127.0.0.1", 0, application) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for user, chosen in users.items():
            url = f"http://127.0.0.1:{server.server_port}/users/{user}"
            with urlopen(Request(url, json.dumps(chosen).encode(), method="PUT")) as answer:
                print(answer.read().decode())
        server.shutdown()


def join(user, start):
    """Choose each half hour, in the one before ``start`` (Unix time): from the answer on it counts."""
    time.sleep(max(float(start) - HALF_HOUR + 0.2 - time.time(), 0))
    choose({user: {"every": 1, "at": 0, "zone": "Asia/Tokyo"}})


if __name__ == "__main__":
    if sys.argv[1] == "sign-up":
        choose(json.loads(sys.argv[2]))
    else:
        join(*sys.argv[1:])
