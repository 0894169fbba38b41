"""The requests that the service sends, in the description of the API."""

from __future__ import annotations

from fastapi import FastAPI

from tuner.wire.responses.webhooks import JobEnded


def describe_webhooks(app: FastAPI) -> None:
    """Adds the requests that receivers get to the description; there are no routes with their names."""

    @app.webhooks.post("job.ended", status_code=204)
    def job_ended(body: JobEnded) -> None:
        """Sent when a job has ended, to the address that it was submitted with; any 2xx status accepts it."""
