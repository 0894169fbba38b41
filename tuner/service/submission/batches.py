"""Submits, queries and ends batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

from tuner.core.access.caller import LOCAL, Caller, Role
from tuner.core.problem.workload import Workload
from tuner.core.trial.job import JobSpec, JobTerms
from tuner.core.trial.ladders.batch import MAX_JOBS, BatchRecord, plan_batch
from tuner.core.trial.ladders.ladder import Ladder
from tuner.core.trial.records import Event, JobRecord, Page
from tuner.core.units import counted
from tuner.errors import Conflict, Forbidden, InvalidInput, NotFound
from tuner.service.paging import check_limit
from tuner.service.submission.submissions import Submissions, check_terms, key_of
from tuner.store import Store
from tuner.store.access import audit
from tuner.store.admin import removal
from tuner.store.engine.commits import Wake
from tuner.store.jobs import batches, jobs
from tuner.store.listings.batches import BatchFacts, facts
from tuner.store.tables.batch_models import BatchRow


class Batches:
    """Batches of jobs that were submitted together. Thread-safe."""

    def __init__(self, store: Store, submissions: Submissions, clock: Callable[[], float]) -> None:
        self._store = store
        self._submissions = submissions
        self._clock = clock

    def submit(
        self,
        specs: Sequence[JobSpec],
        *,
        neighbour_trials: int | None = None,
        reuse: bool = False,
        caller: Caller = LOCAL,
        terms: JobTerms | None = None,
        idempotency_key: str | None = None,
        body_digest: str = "",
    ) -> tuple[BatchRecord, bool]:
        """The batch of these problems, and whether it is new. Either all of its jobs are accepted, or none.

        If `caller` has an open batch of the same problems, that one is returned. If a job already works on one of the
        problems, that job becomes part of the batch; with `reuse`, also a job that has solved it.

        Raises:
            InvalidInput: too few or too many problems, a duplicate, several targets, a target without a worker, or a
                key that was used with a different body.
            Forbidden: the priority is above 0, and `caller` is not an admin.
        """
        terms = terms or JobTerms()
        _check_specs(specs)
        check_terms(terms, caller)
        digest = _digest_of(specs)
        key, now = key_of(caller, idempotency_key), self._clock()
        with self._store.write() as session:
            if key and (known := batches.by_key(session, key, body_digest)) is not None:
                return known, False
            if (known := batches.find_open(session, digest, caller.owner)) is not None:
                for job, _ in batches.jobs_of(session, known.id):
                    self._submissions.join(session, job, caller, terms)
                return known, False
            batch_id, taken = batches.new_id(), dict[str, int]()
            for item in plan_batch(specs, neighbour_trials):
                job, _ = self._submissions.take(session, item.spec, caller, terms, reuse=reuse, batch_id=batch_id)
                taken[job.id] = item.ladder
            row = BatchRow(
                id=batch_id,
                digest=digest,
                target_id=specs[0].target_id,
                owner=caller.owner,
                project=terms.project,
                num_ladders=1 + max(taken.values()),
                created_at=now,
                idempotency_key=key,
                body_digest=body_digest,
            )
            batches.insert(session, row, list(taken.items()))
            audit.append(session, caller, "batch.submit", batch_id, now)
            return batches.get(session, batch_id), True

    def get(self, batch_id: str) -> BatchRecord:
        """A batch and its state.

        Raises:
            NotFound: no such batch.
        """
        with self._store.read() as session:
            return batches.get(session, batch_id)

    def page(
        self, cursor: str | None = None, limit: int = 50, owner: str | None = None, project: str | None = None
    ) -> Page[BatchRecord]:
        """Batches, the newest first.

        Raises:
            InvalidInput: the cursor belongs to another listing, or the limit is out of range.
        """
        check_limit(limit)
        with self._store.read() as session:
            return batches.page(session, cursor, limit, owner, project)

    def jobs(self, batch_id: str, cursor: str | None = None, limit: int = 50) -> Page[tuple[JobRecord, int]]:
        """A batch's jobs, each with its ladder, in search order.

        Raises:
            NotFound: no such batch.
            InvalidInput: the cursor belongs to another listing, or the limit is out of range.
        """
        check_limit(limit)
        with self._store.read() as session:
            page = batches.job_page(session, batch_id, cursor, limit)
        return Page(
            items=[(self._submissions.with_wait(job), ladder) for job, ladder in page.items],
            next_cursor=page.next_cursor,
        )

    def cancel(self, batch_id: str, caller: Caller = LOCAL) -> BatchRecord:
        """Cancels a batch, and its open jobs that no other request needs, be it a single request or another batch.

        Raises:
            NotFound: no such batch.
            Forbidden: it belongs to somebody else.
            Conflict: the batch has already ended.
        """
        now = self._clock()
        with self._store.write() as session:
            batch = batches.get(session, batch_id)
            _check_owner(batch, caller, "end")
            if batch.cancelled_at is not None:
                return batch
            if batch.state.is_final:
                raise Conflict(f"a batch that is {batch.state} cannot be cancelled")
            for job in batches.open_jobs(session, batch_id):
                self._submissions.withdraw(session, job, batch, caller)
            batches.cancel(session, batch_id, now)
            audit.append(session, caller, "batch.cancel", batch_id, now)
            return batches.get(session, batch_id)

    def delete(self, batch_id: str, caller: Caller) -> list[str]:
        """Deletes an ended batch, and its jobs that no other request needs; returns the ids of the others.

        Raises:
            NotFound: no such batch.
            Forbidden: it belongs to somebody else.
            Conflict: the batch, or a job that others share, is open.
        """
        with self._store.write() as session:
            batch = batches.get(session, batch_id)
            _check_owner(batch, caller, "delete")
            if batch.num_open:
                is_over = batch.cancelled_at is not None
                remedy = "delete it once they end, as others share them" if is_over else "cancel it first"
                raise Conflict(f"{batch_id} has {counted(batch.num_open, 'open job')}; {remedy}: nothing was deleted")
            if not batch.state.is_final:
                raise Conflict(f"{batch_id} has ladders without a result yet; cancel it first: nothing was deleted")
            its_jobs = [job for job, _ in batches.jobs_of(session, batch_id)]
            kept = [job.id for job in its_jobs if self._submissions.withdraw(session, job, batch, caller)]
            removal.remove_batch(session, batch_id)
            audit.append(session, caller, "batch.delete", batch_id, self._clock())
            return kept

    def pause(self, batch_id: str, caller: Caller, is_paused: bool) -> BatchRecord:
        """Pauses or resumes a batch's open jobs. Jobs that others share continue, unless `caller` is an admin.

        Raises:
            NotFound: no such batch.
            Forbidden: it belongs to somebody else.
            Conflict: the batch has ended.
        """
        verb, now = "pause" if is_paused else "resume", self._clock()
        with self._store.write() as session:
            batch = batches.get(session, batch_id)
            _check_owner(batch, caller, verb)
            if batch.state.is_final:
                raise Conflict(f"{batch_id} has ended ({batch.state}), and can neither be paused nor resumed")
            for job in batches.open_jobs(session, batch_id):
                is_shared = len(job.owners) > 1 and caller.role is not Role.ADMIN
                if caller.owns(job.owners) and not (is_paused and is_shared):
                    jobs.set_paused(session, job.id, is_paused, now)
            audit.append(session, caller, f"batch.{verb}", batch_id, now)
            return batches.get(session, batch_id)

    def facts(self, batch_ids: Collection[str]) -> dict[str, BatchFacts]:
        """Data for listings, for the batches that have jobs."""
        with self._store.read() as session:
            return facts(session, batch_ids)

    def ladders(self, batch_id: str) -> dict[int, Ladder]:
        """The existing results of a batch's ladders, by number.

        Raises:
            NotFound: no such batch, or it has no result yet.
        """
        with self._store.read() as session:
            found, batch = batches.ladders(session, batch_id), batches.get(session, batch_id)
        if not found:
            why = f"it is {batch.state}, and {batch.num_open} of its {batch.num_jobs} jobs are open"
            raise NotFound(f"{batch_id} has no result: {why}")
        return found

    def workloads(self, batch_id: str) -> dict[str, Workload]:
        """The workloads of a batch's jobs, by the jobs' ids.

        Raises:
            NotFound: no such batch.
        """
        with self._store.read() as session:
            return {job.id: job.spec.workload for job, _ in batches.jobs_of(session, batch_id)}

    def events(self, batch_id: str, after_id: int = 0, limit: int = 100) -> list[Event]:
        """Events of a batch's jobs after the one with id `after_id`, oldest first.

        Raises:
            NotFound: no such batch.
            InvalidInput: the limit is out of range.
        """
        check_limit(limit)
        with self._store.read() as session:
            return batches.events_after(session, batch_id, after_id, limit)

    def listening(self, batch_id: str, wake: Wake) -> AbstractContextManager[None]:
        """Within the block, `wake` is set whenever one of the batch's jobs may have new events.

        Raises:
            NotFound: no such batch.
        """
        with self._store.read() as session:
            job_ids = [job.id for job, _ in batches.jobs_of(session, batch_id)]
        return self._store.commits.listening(job_ids, wake)


def _check_owner(batch: BatchRecord, caller: Caller, verb: str) -> None:
    """Raises `Forbidden` if the batch belongs to somebody else, so that the caller may not `verb` it."""
    if not caller.owns((batch.owner,)):
        raise Forbidden(f"{batch.id} belongs to {batch.owner or 'nobody'}; only its owner and admins may {verb} it")


def _digest_of(specs: Sequence[JobSpec]) -> str:
    """A digest of the problems, independent of their order."""
    return hashlib.sha256("\n".join(sorted(spec.problem_digest for spec in specs)).encode()).hexdigest()


def _check_specs(specs: Sequence[JobSpec]) -> None:
    if not 1 <= len(specs) <= MAX_JOBS:
        raise InvalidInput(
            "shapes", f"the batch has {len(specs)} jobs", f"use 1 to {MAX_JOBS}: split it into several batches"
        )
    if len({spec.target_id for spec in specs}) > 1:
        raise InvalidInput("target", "the jobs have several targets", "use a separate batch for each target")
    seen: set[str] = set()
    for spec in specs:
        if spec.problem_digest in seen:
            raise InvalidInput("m", f"{spec.workload.describe()} is requested twice", "request each problem once")
        seen.add(spec.problem_digest)
