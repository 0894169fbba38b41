"""Makes a job from the body of `POST /jobs`, or from the form for a new job."""

from __future__ import annotations

import asyncio

from tuner.core.access.caller import Caller
from tuner.core.trial.records import JobRecord
from tuner.service import Service
from tuner.service.submission.submissions import Submission
from tuner.wire.requests.requests import TuneRequest


def submission_of(body: TuneRequest, target_id: str | None, caller: Caller, key: str | None = None) -> Submission:
    """The submission for a body; `target_id` is the default target, `key` the idempotency key.

    Raises:
        InvalidInput: a field is wrong.
    """
    return Submission(
        spec=body.to_spec(target_id),
        caller=caller,
        terms=body.terms,
        idempotency_key=key,
        body_digest=body.digest if key else "",
        reuse=body.reuse,
    )


async def submit(service: Service, body: TuneRequest, caller: Caller, key: str | None) -> tuple[JobRecord, bool]:
    """The job for a body, and whether it is new.

    Raises:
        TunerError: same as for `submission_of` and `Submissions.submit`.
    """
    target_id = service.submissions.own_target_id
    if body.target is None and target_id is None:  # it may wait for the database, which other requests should not
        target_id = await asyncio.to_thread(service.submissions.default_target_id)
    return await asyncio.wrap_future(service.intake.submit(submission_of(body, target_id, caller, key)))
