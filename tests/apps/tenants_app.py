"""An app whose scheduler sends each entry once per tenant, in the way that ``WAY`` names."""

from __future__ import annotations

import os

from apps.once_app import app, ledger, note  # noqa: F401  # Celery looks for the app here

from celery_once_beat import OnceScheduler, OnceTask

TENANTS = ("acme", "globex", "initech")
WAY = os.environ.get("WAY", "")


class Fanned(OnceTask):
    """Its own ``apply_async`` sends one message a tenant."""

    abstract = True

    def apply_async(self, args=None, kwargs=None, **options):
        if WAY != "task":
            return super().apply_async(args, kwargs, **options)
        sent = [super(Fanned, self).apply_async(args, {"tenant": tenant}, **options) for tenant in TENANTS]
        return sent[-1]


@app.task(bind=True, base=Fanned)
def report(self, tenant="nobody"):
    window = self.window
    ledger.write(
        "report", tenant=tenant, id=self.request.id, key=window.key, of=window.entry, scheduled=window.scheduled
    )


class Scheduler(OnceScheduler):
    def apply_entry(self, entry, producer=None):
        if WAY == "task":
            super().apply_entry(entry, producer)
            return
        kwargs = dict(entry.kwargs)
        for tenant in TENANTS:
            entry.kwargs = {**kwargs, "tenant": tenant}
            if WAY == "send":
                self.app.send_task(entry.task, entry.args, entry.kwargs, producer=producer, **entry.options)
            else:
                super().apply_entry(entry, producer)
