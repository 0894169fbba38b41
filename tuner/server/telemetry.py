"""OpenTelemetry, if requested: a span for each request and for each trial, sent by OTLP.

The SDK's own `OTEL_` variables set the destination. Its libraries come with the extra `telemetry`, and are imported
only here.
"""

from __future__ import annotations

from typing import Any

from tuner import __version__
from tuner.core.trial.job import Trial
from tuner.errors import TunerError
from tuner.versions import install_command

_NS = 1_000_000_000


class NoTelemetry(TunerError):
    """OpenTelemetry was requested, but is not installed."""


class Telemetry:
    """Spans of one service; an observer of its trials."""

    def __init__(self) -> None:
        """Raises:
        NoTelemetry: its libraries are not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise NoTelemetry(
                f"TUNER_OPENTELEMETRY needs {error.name}, which is not installed; run: {install_command('telemetry')}"
            ) from error
        resource = Resource.create({"service.name": "tuner", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("tuner", __version__)
        self._middleware = OpenTelemetryMiddleware

    def around(self, app: Any) -> Any:
        """The application with a span for each request; probes and scrapes have none."""
        return self._middleware(app, excluded_urls="livez,readyz,metrics,static", tracer_provider=self._provider)

    def saw_trial(self, job_id: str, target_id: str, worker: int, trial: Trial) -> None:
        """Records the span of a trial."""
        attributes: dict[str, str | int] = {
            "tuner.job_id": job_id,
            "tuner.trial_number": trial.number,
            "tuner.target": target_id,
            "tuner.worker": worker,
            "tuner.plan_kind": str(trial.candidate.plan_kind),
            "tuner.outcome": type(trial.outcome).__name__.lower(),
        }
        span = self._tracer.start_span("trial", attributes=attributes, start_time=int(trial.started_at * _NS))
        span.end(int(trial.finished_at * _NS))

    def close(self) -> None:
        """Sends the spans that have not been sent yet."""
        self._provider.shutdown()
