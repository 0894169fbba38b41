"""Webhooks: the request to a receiver when a job has ended, and the state of its delivery."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import Field

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import Best, JobRecord, Verdict, Webhook, WebhookState
from tuner.wire.base.root_path import answering_below
from tuner.wire.base.view import View, moment
from tuner.wire.responses.job_view import JobView


class JobResult(View):
    """The result in a few figures; `GET /jobs/{job_id}/best` has all."""

    verdict: Verdict
    winner: PlanKind
    time_us: float | None = Field(description="the winner's time in the finals, microseconds")
    speedup: float | None = Field(description="the library's time divided by the winner's")
    artifact: str | None = Field(description="digest of the kernel's zip, for `GET /artifacts/{digest}`")

    @classmethod
    def of(cls, best: Best) -> Self:
        """Copies `best`."""
        row = None if best.winner_row is None else best.finals[best.winner_row]
        return cls(
            verdict=best.verdict,
            winner=best.winner,
            time_us=row.time_us if row else None,
            speedup=row.speedup if row else None,
            artifact=best.artifact_digest,
        )


class JobEnded(View):
    """The body of a webhook."""

    event: Literal["job.ended"] = "job.ended"
    delivery: str = Field(description="equal in all attempts, so that duplicates can be recognised")
    job: JobView
    result: JobResult | None = Field(description="null if the job failed or was cancelled")

    @classmethod
    def of(cls, webhook: Webhook, job: JobRecord, best: Best | None) -> Self:
        """Copies a job, its result and its webhook's name."""
        result = None if best is None else JobResult.of(best)
        return cls(delivery=webhook.delivery, job=JobView.of(job), result=result)


def job_ended_body(webhook: Webhook, job: JobRecord, best: Best | None, *, root_path: str = "") -> bytes:
    """The bytes to sign and send, for a service under `root_path`."""
    with answering_below(root_path):
        return JobEnded.of(webhook, job, best).model_dump_json().encode()


class WebhookView(View):
    """The state of a job's webhook. Only the host of its address is shown; the rest is known only to its owner."""

    host: str
    state: WebhookState
    num_attempts: int
    next_at: datetime | None = Field(description="when the next attempt is made; null if there is none")
    ended_at: datetime | None = Field(description="when it was accepted or given up")
    reason: str = Field(description="why the last attempt failed; empty otherwise")

    @classmethod
    def of(cls, webhook: Webhook) -> Self:
        """Copies `webhook`."""
        return cls(
            host=webhook.host,
            state=webhook.state,
            num_attempts=webhook.num_attempts,
            next_at=None if webhook.due_at is None else moment(webhook.due_at),
            ended_at=None if webhook.ended_at is None else moment(webhook.ended_at),
            reason=webhook.reason,
        )
