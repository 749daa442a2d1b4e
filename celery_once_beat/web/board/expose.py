"""What makes metrics of a report; None where the extra that it needs isn't installed."""

from __future__ import annotations

try:
    from celery_once_beat.status.metrics import expose
except ModuleNotFoundError as exc:
    if exc.name != "prometheus_client":
        raise
    expose = None  # type: ignore[assignment]

__all__ = ("expose",)
