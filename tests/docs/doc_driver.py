"""Executes a page's Python blocks in one namespace, as a process of its own.

Reads a line of JSON for each block, ``{"code", "where"}``, and answers with ``{"output", "error"}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback


def check(app: object) -> None:
    """An app that a page shows is one that a beat would start with."""
    from celery import Celery

    if isinstance(app, Celery) and (app.conf.broker_url or app.conf.get("once_beat_redis_url")):
        from celery_once_beat.settings import Settings

        app.finalize()
        Settings.from_app(app)


def main() -> None:
    answers = sys.stdout
    sys.path.insert(0, "")
    namespace: dict[str, object] = {"__name__": "page"}
    for line in sys.stdin:
        request = json.loads(line)
        output, error = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(output):
                exec(compile(request["code"], request["where"], "exec"), namespace)
                check(namespace.get("app"))
        except BaseException:  # noqa: BLE001  # the page's own
            error = traceback.format_exc()
        print(json.dumps({"output": output.getvalue(), "error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main()
