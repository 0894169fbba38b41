"""Submitting and ending jobs, and why an open job waits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tuner.core.access.caller import LOCAL, Caller, Role
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.op_kinds import broken_kinds, spelled, usable_kinds
from tuner.core.trial.job import MAX_LABELS, JobSpec, JobState, JobTerms, check_transition
from tuner.core.trial.ladders.batch import BatchRecord
from tuner.core.trial.records import JobRecord, Webhook
from tuner.dispatch import Dispatcher
from tuner.errors import Conflict, Forbidden, InvalidInput, StoreUnavailable
from tuner.service.fleet.cards import num_fit
from tuner.service.submission.quotas import Quotas
from tuner.service.submission.unsupported import refusal
from tuner.service.webhooks.policy import WebhookPolicy
from tuner.store import Session, Store
from tuner.store.access import audit
from tuner.store.admin import removal
from tuner.store.engine.gathering import gathering, write_now
from tuner.store.jobs import asking, batches, jobs, keys, queue, served, webhooks

#: The default terms of a job.
_PLAIN = JobTerms()


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job submission."""

    spec: JobSpec
    #: Who submits the job.
    caller: Caller = LOCAL
    terms: JobTerms = _PLAIN
    #: The client's name for the request; sending it twice makes only one job.
    idempotency_key: str | None = None
    #: Digest of the request's body; the same key must not be used with a different body.
    body_digest: str = ""
    #: Whether a finished job for the same problem is accepted instead of a new one.
    reuse: bool = False


class Submissions:
    """Accepts jobs, and ends them at the request of their owners."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        clock: Callable[[], float],
        leads: Callable[[], bool],
        policy: WebhookPolicy | None = None,
    ) -> None:
        """`leads` tells whether this server runs the jobs; if not, it accepts jobs for the server that does. `policy`
        says which webhooks are allowed; None means none."""
        #: The quotas that each new job is checked against.
        self.quotas = Quotas(store, clock)
        self._policy = policy or WebhookPolicy()
        self._store = store
        self._dispatcher = dispatcher
        self._clock = clock
        self._leads = leads

    def submit(self, asked: Submission) -> tuple[JobRecord, bool]:
        """The job for this submission, and whether it is new; the caller becomes one of its owners.

        Raises:
            InvalidInput: there is no worker for the target, or the key was used with a different body.
            Forbidden: the priority is above 0 and the caller is not an admin, or a quota would be exceeded.
            StoreUnavailable: the database cannot be written now; nothing was changed.
        """
        (outcome,) = self.submit_together([asked])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def submit_together(self, asked: Sequence[Submission]) -> list[tuple[JobRecord, bool] | Exception]:
        """`submit` for each, in one transaction, since a common commit costs little more than a single one. Exceptions
        are returned among the results. If a submission is refused, nothing is written, and each submission gets its own
        transaction."""
        try:
            with self._store.write() as session, gathering(session):
                taken = jobs.open_among(session, {one.spec.problem_digest for one in asked})
                found = [self._admit(session, one, taken) for one in asked]
        except StoreUnavailable as error:
            return [error] * len(asked)
        except Exception as error:
            return [error] if len(asked) == 1 else [self.submit_together([one])[0] for one in asked]
        return [(self.with_wait(job), is_new) for job, is_new in found]

    def _admit(self, session: Session, asked: Submission, taken: set[str]) -> tuple[JobRecord, bool]:
        """Does the work of `submit`, in a writing session that collects rows. `taken` are the problems of open jobs."""
        caller, terms, problem = asked.caller, asked.terms, asked.spec.problem_digest
        check_terms(terms, caller)
        if terms.webhook is not None:
            self._policy.check(terms.webhook)
        now, key = self._clock(), key_of(caller, asked.idempotency_key)
        is_free = problem not in taken
        if key or not is_free:
            write_now(session)  # the job may be in the same transaction
        known = keys.job_of(session, key, asked.body_digest) if key else None
        if known is not None:
            return jobs.get(session, known), False
        job, is_new = self.take(session, asked.spec, caller, terms, reuse=asked.reuse, is_free=is_free)
        taken.add(problem)
        if not job.state.is_final:
            asking.note_single(session, job.id, caller.owner)
        if key or terms.webhook is not None:
            write_now(session)  # their rows refer to the job's row
        if terms.webhook is not None:
            has_ended = job.state.is_final
            webhooks.ask(session, job.id, caller.owner, terms.webhook, has_ended=has_ended, now=now)
        if key:
            keys.remember(session, key, asked.body_digest, job.id, now)
        return job, is_new

    def take(
        self,
        session: Session,
        spec: JobSpec,
        caller: Caller,
        terms: JobTerms,
        *,
        reuse: bool,
        is_free: bool = False,
        batch_id: str | None = None,
    ) -> tuple[JobRecord, bool]:
        """In a writing session: the job that works on a problem, or with `reuse` a job that solved it, or else a new
        job, which is part of the batch if one is given; and whether the job is new. `is_free` means that no open job
        works on the problem.

        Raises:
            InvalidInput: there is no worker for the target, or its GPU does not run the workload.
            Forbidden: a new job would exceed a quota.
        """
        now = self._clock()
        job = None if is_free else jobs.find_open(session, spec.problem_digest)
        if job is not None:
            return self.join(session, job, caller, terms), False
        if reuse and (solved := jobs.find_succeeded(session, spec.problem_digest)) is not None:
            return solved, False
        self._check_served(session, spec.target_id)
        self._check_runs(spec)
        self.quotas.check(session, caller, terms.project)
        job = jobs.insert(session, spec, now, caller.owner, terms, batch_id)
        audit.append(session, caller, "job.submit", job.id, now)
        return job, True

    def join(self, session: Session, job: JobRecord, caller: Caller, terms: JobTerms) -> JobRecord:
        """In a writing session: adds another request to the job for the same problem.

        Raises:
            InvalidInput: the job would have too many labels.
        """
        is_owner = not caller.owner or caller.owner in job.owners
        if is_owner and terms.priority <= job.priority and set(terms.labels) <= set(job.labels):
            return job
        new = set(terms.labels) - set(job.labels)
        if new and (count := jobs.num_labels_of(session, job.id, caller.owner) + len(new)) > MAX_LABELS:
            problem = f"{job.id} already works on this problem; with these it would have {count} of your labels"
            remedy = f"an owner may give a job at most {MAX_LABELS} labels: leave some out, or reuse existing ones"
            raise InvalidInput("labels", problem, remedy)
        now = self._clock()
        audit.append(session, caller, "job.attach", job.id, now)
        return jobs.attach(session, job.id, caller.owner, terms, now)

    def cancel(self, job_id: str, caller: Caller) -> JobRecord:
        """Cancels a job; if others share its run, it continues, and `caller` no longer owns it.

        Raises:
            NotFound: no such job.
            Forbidden: it belongs to somebody else.
            Conflict: the job has succeeded or failed.
        """
        with self._store.write() as session:
            return self.end(session, jobs.get(session, job_id), caller)

    def end(self, session: Session, job: JobRecord, caller: Caller) -> JobRecord:
        """Does the work of `cancel`, in a writing session."""
        now = self._clock()
        check_owner(caller, job, "end")
        if job.state is JobState.CANCELLED:
            return job
        check_transition(job.state, JobState.CANCELLED)
        if caller.owner in job.owners and len(job.owners) > 1:
            return self._detach(session, job.id, caller.owner, caller, now)
        return self._end_for_all(session, job.id, caller, now)

    def withdraw(self, session: Session, job: JobRecord, batch: BatchRecord, caller: Caller) -> bool:
        """In a writing session: detaches a job from a batch; if nobody else needs it, ends it, or deletes it if it has
        ended. Returns whether it is needed. `caller` may end and delete the batch."""
        others, now = asking.who_else(session, job, batch), self._clock()
        if not others:
            (self._remove if job.state.is_final else self._end_for_all)(session, job.id, caller, now)
        elif batch.owner in job.owners and batch.owner not in others:
            self._detach(session, job.id, batch.owner, caller, now)
        return bool(others)

    def delete(self, job_id: str, caller: Caller) -> JobRecord | None:
        """Deletes an ended job with all its data, and returns None. If others share its run, the job is kept for them,
        whether open or not, and is returned without `caller`.

        Raises:
            NotFound: no such job, or it was already deleted.
            Forbidden: it belongs to somebody else.
            Conflict: the job is open, and has no other owner.
        """
        now = self._clock()
        with self._store.write() as session:
            job = jobs.get(session, job_id)
            check_owner(caller, job, "delete")
            if caller.owner in job.owners and len(job.owners) > 1:
                return self._detach(session, job_id, caller.owner, caller, now)
            self._remove(session, job_id, caller, now)
        return None

    def _remove(self, session: Session, job_id: str, caller: Caller, now: float) -> None:
        removal.mark(session, job_id, now, f"by {caller.owner}" if caller.owner else "by a client")
        audit.append(session, caller, "job.delete", job_id, now)

    def _end_for_all(self, session: Session, job_id: str, caller: Caller, now: float) -> JobRecord:
        audit.append(session, caller, "job.cancel", job_id, now)
        return jobs.set_state(session, job_id, JobState.CANCELLED, now)

    def _detach(self, session: Session, job_id: str, owner: str, caller: Caller, now: float) -> JobRecord:
        """Removes an owner from the job, with that owner's webhooks; returns the job."""
        audit.append(session, caller, "job.detach", job_id, now)
        webhooks.drop(session, job_id, owner)
        asking.drop_single(session, job_id, owner)
        return jobs.detach(session, job_id, owner)

    def webhooks(self, job_id: str) -> list[Webhook]:
        """A job's webhooks and their states."""
        with self._store.read() as session:
            return webhooks.of_job(session, job_id)

    def pause(self, job_id: str, caller: Caller, is_paused: bool) -> JobRecord:
        """Pauses or resumes an open job. If it is searching, the trial on the card is recorded first.

        Raises:
            NotFound: no such job.
            Forbidden: it belongs to somebody else, or others share the run to be paused.
            Conflict: the job has ended.
        """
        verb, now = "pause" if is_paused else "resume", self._clock()
        with self._store.write() as session:
            job = jobs.get(session, job_id)
            check_owner(caller, job, verb)
            if is_paused and caller.role is not Role.ADMIN and len(job.owners) > 1:
                raise Forbidden(f"{job_id} is shared with others; only an admin may pause it")
            audit.append(session, caller, f"job.{verb}", job_id, now)
            return self.with_wait(jobs.set_paused(session, job_id, is_paused, now))

    def retry(self, job_id: str, caller: Caller) -> tuple[JobRecord, bool]:
        """Submits the same problem again with the same terms; also returns whether that created a job.

        Raises:
            NotFound: no such job.
            Conflict: the job has neither failed nor been cancelled.
        """
        with self._store.read() as session:
            job = jobs.get(session, job_id)
            own = [one.url for one in webhooks.of_job(session, job_id) if one.owner == caller.owner]
        if job.state not in (JobState.FAILED, JobState.CANCELLED):
            raise Conflict(
                f"only a job that failed or was cancelled can be retried; {job_id} has the state {job.state}"
            )
        deadline_s = None if job.deadline_at is None else job.deadline_at - job.created_at
        priority = job.priority if caller.role is Role.ADMIN else min(job.priority, 0)
        terms = JobTerms(
            priority=priority,
            project=job.project,
            labels=job.labels,
            deadline_s=deadline_s,
            webhook=next(iter(own), None),
        )
        return self.submit(Submission(spec=job.spec, caller=caller, terms=terms))

    def place(self, job_id: str) -> tuple[int | None, float | None]:
        """The number of jobs ahead of an open job, and the estimated seconds until it ends; None if unknown.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return queue.place(session, job_id, partial(num_fit, self._dispatcher), self._clock())

    @property
    def own_target_id(self) -> str | None:
        """The targets of this server, if it measures; needs neither a card nor the database."""
        return next((target.id for target in self._dispatcher.targets), None)

    def default_target_id(self) -> str | None:
        """The default target of jobs: this server's, or that of the server that runs the jobs."""
        if self.own_target_id is not None or self._leads():
            return self.own_target_id
        with self._store.read() as session:
            return next(iter(served.target_ids(session)), None)

    def _check_runs(self, spec: JobSpec) -> None:
        gpus = (target.gpu for target in self._dispatcher.targets if target.id == spec.target_id)
        if refused := next(filter(None, (refusal(spec.workload, gpu) for gpu in gpus)), None):
            field, problem, remedy = refused
            raise InvalidInput(f"pair.{field}", problem, remedy)

    def _check_served(self, session: Session, target_id: str) -> None:
        own = [target.id for target in self._dispatcher.targets]
        if target_id in own:
            return
        other = f", or a server with --gpu {target_id}" if parse_target(target_id).simulated else ""
        if self._leads():
            remedy = f"use one of {', '.join(own)}{other}" if own else "start one with --gpu"
            raise InvalidInput("target", f"no worker of this server measures on {target_id}", remedy)
        leaders = served.target_ids(session)
        if leaders and target_id not in leaders:
            problem = f"no worker of the server that runs the jobs measures on {target_id}"
            raise InvalidInput("target", problem, f"use one of {', '.join(leaders)}")

    def unserved(self, target_id: str) -> str:
        """Why an open job for a target can never continue on this server; empty if it can."""
        if not self._leads() or any(target.id == target_id for target in self._dispatcher.targets):
            return ""
        return f"it waits, since no worker of this server measures on {target_id}; start the server with such a card"

    def waiting(self, target_id: str) -> str:
        """Why an open job for a target does not continue; empty if it does."""
        quarantine = self._dispatcher.quarantine(target_id)
        if quarantine is None:
            return self.unserved(target_id)
        return f"it waits, since {target_id} is in quarantine and is checked repeatedly: {quarantine.reason}"

    def with_wait(self, job: JobRecord) -> JobRecord:
        """The job, with a reason if it is open and does not continue."""
        if job.state.is_final:
            return job
        waiting = "it is paused" if job.is_paused else self._lack(job) or self.waiting(job.spec.target_id)
        waiting = waiting or self._wait_of_ladder(job)
        return replace(job, reason=waiting) if waiting else job

    def _lack(self, job: JobRecord) -> str:
        """What an open job needs from packages that no worker has; empty if nothing is missing."""
        workload, target_id = job.spec.workload, job.spec.target_id
        if unknown := workload.unknown_kinds:
            which = " and ".join(unknown)
            known = f"it has an op of the unknown kind {which}"
            broken = [f"{kind} cannot be used: {why}" for kind, why in broken_kinds().items() if kind in unknown]
            remedy = f"repair the package ({'; '.join(broken)})" if broken else "install the package that provides it"
            return f"{known}: {remedy}, or cancel it"
        needed = set(workload.needs)
        workers = range(self._dispatcher.num_workers(target_id)) if needed else ()
        lacking: list[set[str]] = [
            needed - set(usable_kinds(self._dispatcher.lane(target_id, one).kinds)) for one in workers
        ]
        if not lacking or not all(lacking):
            return ""
        fewest: set[str] = min(lacking, key=len)
        which = spelled(fewest)
        remedy = "install the package that provides it there, in the same version as here"
        return f"it waits, since no worker of {target_id} has {which}: {remedy}, or cancel it"

    def _wait_of_ladder(self, job: JobRecord) -> str:
        """The jobs of its ladder that a job waits for, paused ones first."""
        if job.state is not JobState.SEARCHING or not job.batch_step:
            return ""
        with self._store.read() as session:
            found = batches.waits_for(session, job.id)
        paused = [job_id for job_id, is_paused in found if is_paused]
        if paused:
            return f"it waits for {', '.join(paused)} of its ladder, which {'is' if len(paused) == 1 else 'are'} paused"
        others = f"{len(found)} other job{'s' if len(found) > 1 else ''}"
        return f"it waits for {others} of its ladder to catch up" if found else ""


def check_terms(terms: JobTerms, caller: Caller) -> None:
    """Raises `Forbidden` if the priority is above 0 and `caller` is not an admin."""
    if terms.priority > 0 and caller.role is not Role.ADMIN:
        raise Forbidden(f"only an admin may set a priority above 0, got {terms.priority}")


def check_owner(caller: Caller, job: JobRecord, verb: str) -> None:
    """Refuses changes to somebody else's job.

    Raises:
        Forbidden: `caller` is neither one of its owners nor an admin.
    """
    if not caller.owns(job.owners):
        whose = f"belongs to {', '.join(job.owners)}" if job.owners else "was submitted without a token"
        raise Forbidden(f"{job.id} {whose}; only its owners and admins may {verb} it")


def key_of(caller: Caller, key: str | None) -> str | None:
    """The stored form of an idempotency key, since two owners may choose the same one."""
    if key is None or not caller.owner:
        return key
    return hashlib.sha256(f"{caller.owner}\0{key}".encode()).hexdigest()
