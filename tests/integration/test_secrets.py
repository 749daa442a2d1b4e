"""No password in any log line, banner, error or repr, whatever happens to the server that wants it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from celery import Celery
from processes import Proc, Processes
from servers import RedisServer
from steps import heard
from system import System

from celery_once_beat.beat.scheduler import OnceScheduler
from celery_once_beat.errors import StoreUnavailableError
from celery_once_beat.settings import Settings
from celery_once_beat.store.verbs import Store

#: Who has which password; with signs that a URL has to quote.
PASSWORDS = {"broker": "br0ker/p@ss:word%1", "results": "r3sults/p@ss:word%2", "store": "st0re/p@ss:word%3"}
WRONG = {"broker": "wr0ng/br@ker:%4", "results": "wr0ng/r@sults:%5", "store": "wr0ng/st@re:%6"}
SECRETS = [*PASSWORDS.values(), *WRONG.values()]


def forms(secret: str) -> set[str]:
    """A password as it is and as URLs and reprs write it, and the part of it that no quoting changes."""
    return {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1], secret[:6]}


def check(text: str, where: object) -> None:
    """Fail if any form of a password stands in the text."""
    for secret in SECRETS:
        for form in forms(secret):
            found = [line for line in text.splitlines() if form in line]
            assert not found, f"{where} shows {form!r}: {found[0][:300]}"


def let_in(server: RedisServer, passwords: dict[str, str]) -> None:
    """Make the users with these passwords, and end what is connected with others."""
    with server.client() as client:
        for user, password in passwords.items():
            client.execute_command("ACL", "SETUSER", user, "reset", "on", f">{password}", "~*", "&*", "+@all")
        for other in client.client_list():
            if other["user"] in passwords:
                client.client_kill_filter(_id=other["id"])


def url(server: RedisServer, user: str, passwords: dict[str, str], db: int = 0) -> str:
    return f"redis://{user}:{quote(passwords[user], safe='')}@127.0.0.1:{server.port}/{db}"


@pytest.mark.long
def test_no_password_is_shown(system: System, start_redis: Callable[..., RedisServer]) -> None:
    """Beat, worker and ping say no password at loglevel DEBUG: right ones, wrong ones, server gone and back."""
    system.check_law = False
    server = start_redis()
    let_in(server, PASSWORDS)

    def start(name: str, passwords: dict[str, str]) -> list[Proc]:
        """A worker, a beat and a probe with these passwords."""
        system.broker_url = url(server, "broker", passwords)
        system.result_url = url(server, "results", passwords, 1)
        system.store_url = url(server, "store", passwords)
        return [
            system.worker(f"worker-{name}", loglevel="DEBUG"),
            system.beat(f"beat-{name}", loglevel="DEBUG"),
            system.celery("once", "ping", name=f"ping-{name}"),
        ]

    wrong = start("wrong", WRONG)
    wrong[0].wait_log("invalid username-password")
    wrong[1].wait_log("nothing is claimed until Redis can be used again: .*WRONGPASS|invalid username-password")
    assert wrong[2].wait() == os.EX_UNAVAILABLE
    right = start("right", PASSWORDS)
    system.use_store(system.store_url)
    system.wait_done(2)
    let_in(server, WRONG)  # they change under them
    right[0].wait_log("invalid username-password")
    right[1].wait_log("nothing is claimed|the broker doesn't answer")
    let_in(server, PASSWORDS)
    system.wait_done(2, timeout=60)
    server.stop()
    right[0].wait_log("Connection refused|onnection to broker lost")
    assert system.celery("once", "ping", name="ping-gone").wait() == os.EX_UNAVAILABLE
    server.restart()
    let_in(server, PASSWORDS)
    system.wait_done(2, timeout=60)
    assert "127.0.0.1" in right[1].log, "the banner still says where"
    for proc in system.procs:
        proc.stop()
        check(proc.log, proc)
        assert proc.log


PLAIN = """
from celery import Celery
app = Celery("plain", broker={broker!r})
app.conf.update(once_beat_redis_url={store!r}, once_beat_effects_url="postgresql://me:" + {password!r} + "@db/effects")
app.conf.update(once_beat_redis_options={{"password": {password!r}, "sentinel_kwargs": {{"password": {password!r}}}}})
"""


def test_celery_itself_shows_none(start_redis: Callable[..., RedisServer], procs: Processes, tmp_path: Path) -> None:
    """``celery report`` and ``celery inspect conf`` hide ours, also where the app imports nothing of this package."""
    server = start_redis()
    let_in(server, PASSWORDS)
    store, quoted = url(server, "store", PASSWORDS), quote(PASSWORDS["store"], safe="")
    (tmp_path / "plain.py").write_text(PLAIN.format(broker=server.url(), store=store, password=quoted))

    def celery(*words: str) -> Proc:
        return procs.start([sys.executable, "-m", "celery", "-A", "plain", *words], name=words[0], cwd=tmp_path)

    celery("worker", "-P", "solo", "-l", "info", "-n", "one@here").wait_log("ready")
    for words in (["report"], ["inspect", "conf", "-t", "30", "-d", "one@here"]):
        asked = celery(*words)
        assert asked.wait(60) == 0, asked.log
        check(asked.log, words)
        assert "once_beat_redis_url" in asked.log
        assert "once_beat_effects_url" in asked.log


@pytest.mark.parametrize("passwords", [PASSWORDS, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize("state", ["there", "gone"])
def test_no_password_in_a_repr_or_traceback(state: str, passwords: dict[str, str], start_redis) -> None:
    """What holds the password can be shown: settings, store, scheduler, errors with their causes."""
    server = start_redis()
    let_in(server, PASSWORDS)
    app = Celery("secret", broker=url(server, "broker", passwords), set_as_current=False)
    app.conf.update(
        result_backend=url(server, "results", passwords, 1), once_beat_redis_url=url(server, "store", passwords)
    )
    settings = Settings.from_app(app)
    store = Store(settings)
    scheduler = OnceScheduler(app=app, lazy=False)
    if state == "gone":
        server.stop()
    shown = [settings, store, store.trip, scheduler, scheduler.info, scheduler.recovery, scheduler._claiming]
    try:
        heard(store, "beat-1")
        assert (state, passwords) == ("there", PASSWORDS)
    except StoreUnavailableError as exc:
        assert (state, passwords) != ("there", PASSWORDS)
        shown += [exc, exc.args, exc.__cause__, "".join(traceback.format_exception(exc))]
    shown += [store.trip._nodes.client, scheduler.tick()]
    for each in shown:
        check(f"{each!r}\n{each}", type(each))
    store.close()
    scheduler.close()
