"""What makes metrics of a report; None where the extra that it needs isn't installed."""

from __future__ import annotations

try:
    from celery_once_beat.status.metrics import OnceCollector
except ModuleNotFoundError as exc:
    if exc.name != "prometheus_client":
        raise
    OnceCollector = None  # type: ignore[assignment, misc]

__all__ = ("OnceCollector",)
