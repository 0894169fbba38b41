"""Where jobs are asked for and ended, and by whom; and why an open job waits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from tuner.core.access.caller import Caller
from tuner.core.problem.gpu import parse_target
from tuner.core.trial.job import JobSpec, JobState, check_transition
from tuner.core.trial.records import JobRecord
from tuner.dispatch import Dispatcher
from tuner.errors import Forbidden, InvalidInput
from tuner.store import Store, audit, jobs, keys


class Desk:
    """Takes jobs in, and ends them at their owners' wish."""

    def __init__(self, store: Store, dispatcher: Dispatcher, clock: Callable[[], float]) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._clock = clock

    def submit(
        self, spec: JobSpec, caller: Caller, idempotency_key: str | None, body_digest: str, reuse: bool
    ) -> tuple[JobRecord, bool]:
        """The job for `spec`, and whether it is new; `caller` becomes one of its owners.

        Raises:
            InvalidInput: no worker serves the target, or the key came with another body.
        """
        now, key = self._clock(), _key_of(caller, idempotency_key)
        with self._store.write() as session:
            known = keys.job_of(session, key, body_digest) if key else None
            if known is not None:
                return self.with_wait(jobs.get(session, known)), False
            job = jobs.find_open(session, spec.problem_digest)
            if job is not None and caller.owner and caller.owner not in job.owners:
                job = jobs.attach(session, job.id, caller.owner, now)
                audit.append(session, caller, "job.attach", job.id, now)
            elif job is None and reuse:
                job = jobs.find_succeeded(session, spec.problem_digest)
            is_new = job is None
            if job is None:
                self._check_served(spec.target_id)
                job = jobs.insert(session, spec, now, caller.owner)
                audit.append(session, caller, "job.submit", job.id, now)
            if key:
                keys.remember(session, key, body_digest, job.id, now)
        return self.with_wait(job), is_new

    def cancel(self, job_id: str, caller: Caller) -> JobRecord:
        """Ends a job; where others share its run, it goes on, and `caller` is no owner of it any more.

        Raises:
            NotFound: no such job.
            Forbidden: it is somebody else's.
            Conflict: it has succeeded or failed.
        """
        now = self._clock()
        with self._store.write() as session:
            job = jobs.get(session, job_id)
            check_owner(caller, job, "end")
            if job.state is JobState.CANCELLED:
                return job
            check_transition(job.state, JobState.CANCELLED)
            if caller.owner in job.owners and len(job.owners) > 1:
                audit.append(session, caller, "job.detach", job_id, now)
                return jobs.detach(session, job_id, caller.owner)
            audit.append(session, caller, "job.cancel", job_id, now)
            return jobs.set_state(session, job_id, JobState.CANCELLED, now)

    def _check_served(self, target_id: str) -> None:
        served = [target.id for target in self._dispatcher.targets]
        if target_id in served:
            return
        parse_target(target_id)
        remedy = f"use one of {', '.join(served)}" if served else "start one with --gpu"
        raise InvalidInput("target", f"no worker of this server measures on {target_id}", remedy)

    def unserved(self, target_id: str) -> str:
        """Why nobody will ever go on with an open job of that target here; empty where somebody may."""
        if any(target.id == target_id for target in self._dispatcher.targets):
            return ""
        return f"it waits, since no worker of this server measures on {target_id}; start the server where one can"

    def waiting(self, target_id: str) -> str:
        """Why nothing goes on with an open job of that target; empty where something does."""
        quarantine = self._dispatcher.quarantine(target_id)
        if quarantine is None:
            return self.unserved(target_id)
        return f"it waits, since {target_id} is in quarantine and probed again from time to time: {quarantine.reason}"

    def with_wait(self, job: JobRecord) -> JobRecord:
        """The job with a reason if it is open and nothing goes on with it."""
        waiting = "" if job.state.is_final else self.waiting(job.spec.target_id)
        return replace(job, reason=waiting) if waiting else job


def check_owner(caller: Caller, job: JobRecord, verb: str) -> None:
    """Refuses a change of somebody else's job.

    Raises:
        Forbidden: `caller` is neither one of its owners nor an admin.
    """
    if not caller.owns(job.owners):
        whose = f"belongs to {', '.join(job.owners)}" if job.owners else "was submitted without a token"
        raise Forbidden(f"{job.id} {whose}; only its owners and admins may {verb} it")


def _key_of(caller: Caller, key: str | None) -> str | None:
    """An idempotency key as it is kept: two owners may choose the same."""
    if key is None or not caller.owner:
        return key
    return hashlib.sha256(f"{caller.owner}\0{key}".encode()).hexdigest()
