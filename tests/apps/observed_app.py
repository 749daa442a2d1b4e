"""``once_app`` with the tools installed that ``OBSERVED`` names, as docs/works-with.md says.

What they say goes to the ledger where they can be told so in code, as a line of their own kind.
"""

from __future__ import annotations

import os

from apps.once_app import app, ledger
from celery.signals import beat_init, celeryd_init, worker_process_init

__all__ = ("app",)

OBSERVED = os.environ["OBSERVED"].split(",")


if "sentry" in OBSERVED:
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration

    @celeryd_init.connect(weak=False)
    @beat_init.connect(weak=False)
    def start_sentry(**_):
        sentry_sdk.init(integrations=[CeleryIntegration(monitor_beat_tasks=True)], traces_sample_rate=1.0)


if "opentelemetry" in OBSERVED:
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class LedgerExporter(SpanExporter):
        def export(self, spans):
            for span in spans:
                ledger.write(
                    "span",
                    by="opentelemetry",
                    role=span.kind.name.lower(),
                    name=span.name,
                    id=span.context.span_id,
                    trace=span.context.trace_id,
                    parent=span.parent.span_id if span.parent else None,
                    failed=not span.status.is_unset and not span.status.is_ok,
                )
            return SpanExportResult.SUCCESS

    @worker_process_init.connect(weak=False)
    @beat_init.connect(weak=False)
    def start_opentelemetry(**_):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(LedgerExporter()))
        trace.set_tracer_provider(provider)
        CeleryInstrumentor().instrument()


if "datadog" in OBSERVED:  # installed by ddtrace-run
    from ddtrace.trace import TraceFilter, tracer

    class LedgerFilter(TraceFilter):
        def process_trace(self, trace):
            for span in trace:
                ledger.write(
                    "span",
                    by="datadog",
                    role=span.get_tag("span.kind"),
                    name=span.name,
                    id=span.span_id,
                    trace=span.trace_id,
                    parent=span.parent_id,
                    failed=bool(span.error),
                )
            return trace

    tracer.configure(trace_processors=[LedgerFilter()])
