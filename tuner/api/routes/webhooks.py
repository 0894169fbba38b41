"""Documents the requests that the service sends in the API docs."""

from __future__ import annotations

from fastapi import FastAPI

from tuner.wire.responses.webhooks import JobEnded


def describe_webhooks(app: FastAPI) -> None:
    """Adds the requests that receivers get to the API docs; the service itself has no such routes."""

    @app.webhooks.post("job.ended", status_code=204)
    def job_ended(body: JobEnded) -> None:
        """Sent when a job has ended, to the address given at submission; any 2xx status accepts it."""
