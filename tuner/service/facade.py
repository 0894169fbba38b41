"""The facade, thread-safe and synchronous: how requests change jobs, and what they read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from tuner.core.access.caller import LOCAL, Caller
from tuner.core.problem.gpu import Target
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.problem.op_kinds import broken_kinds
from tuner.core.trial.evaluator import Environment, Quarantine
from tuner.core.trial.job import JobSpec, JobState, JobTerms
from tuner.core.trial.priors import Found, KnownWinners
from tuner.core.trial.questions import Question
from tuner.core.trial.records import (
    Best,
    BestMatch,
    Inspection,
    InspectionKind,
    InspectionState,
    JobRecord,
    Page,
)
from tuner.core.trial.reports.baselines import Baseline
from tuner.dispatch import Dispatcher
from tuner.errors import Conflict, InvalidInput, NotFound, WorkerError
from tuner.packs.order import MadePack, PackOrder
from tuner.packs.signing import signing_key
from tuner.search import search_here
from tuner.service.concurrency.clock_steps import ClockSteps
from tuner.service.finals.beside import time_beside
from tuner.service.fleet.cards import Fleet
from tuner.service.fleet.history import FleetHistory
from tuner.service.inspections import check_inspection
from tuner.service.metrics import Metrics, Observer
from tuner.service.paging import check_limit
from tuner.service.queries.charts import JobCharts
from tuner.service.queries.overview import Overview
from tuner.service.queries.reading import TrialReader
from tuner.service.results.matching import check_match
from tuner.service.results.pack_maker import make_pack
from tuner.service.retention import Remover
from tuner.service.runner.helpers import Helpers
from tuner.service.runner.runner import Runner
from tuner.service.runner.runners import Runners
from tuner.service.runner.searching import Search
from tuner.service.submission.authorization import Access
from tuner.service.submission.batches import Batches
from tuner.service.submission.intake import Intake
from tuner.service.submission.submissions import Submission, Submissions
from tuner.service.webhooks.sender import WebhookSender
from tuner.settings import DEFAULT_DISK_LIMIT_BYTES, Retention
from tuner.store import Freed, Store
from tuner.store.access import audit
from tuner.store.jobs import jobs
from tuner.store.results import bests, imports
from tuner.store.trials import inspections, trials

_log = logging.getLogger(__name__)

_NO_RESULT_YET = {
    JobState.QUEUED: "it is queued",
    JobState.SEARCHING: "it is still being searched",
    JobState.FINALS: "its finals are being measured",
    JobState.CANCELLED: "it was cancelled",
}


class Service(TrialReader):
    """Accepts jobs and returns results. `start` begins or continues open jobs. The process may be closed or killed at
    any time: recorded results are kept, and the next `start` continues from them."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        *,
        disk_limit_bytes: int = DEFAULT_DISK_LIMIT_BYTES,
        finals: FinalsProcedure | None = None,
        max_ahead: int | None = None,
        observers: Sequence[Observer] = (),
        winners: KnownWinners | None = None,
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = lambda: True,
        leader_trouble: Callable[[], str] = lambda: "",
        retention: Retention | None = None,
        webhook_sender: WebhookSender | None = None,
        search: Search = search_here,
        always_asks: bool = False,
    ) -> None:
        """`disk_limit_bytes` limits the disk space of artifacts, builds and samples. `finals` runs a job's finals; None
        selects the default. A job has at most `max_ahead` + 1 candidates in progress. `observers` are called for every
        recorded trial. Jobs start from results for similar shapes in the database, and from `winners`. `leads` tells
        whether this server runs the jobs; if not, it accepts jobs for the server that does. `leader_trouble` returns
        the reason if no server runs them. `retention` says which ended jobs are kept; None means all. `webhook_sender`
        sends the webhooks; if there is none, webhooks are refused. `search` starts a search, in this process or
        another. `always_asks` refuses requests without a token."""
        super().__init__(store)
        self._dispatcher = dispatcher
        self._leader_trouble = leader_trouble
        self._clock = clock
        self._disk_limit_bytes = disk_limit_bytes
        #: Submits, pauses and ends jobs.
        self.submissions = Submissions(
            store, dispatcher, clock, leads, webhook_sender.policy if webhook_sender else None
        )
        #: Batches simultaneous submissions into transactions.
        self.intake = Intake(self.submissions)
        #: Jobs that were submitted together.
        self.batches = Batches(store, self.submissions, clock)
        #: The tokens, and the audit log.
        self.access = Access(store, clock, always_asks=always_asks)
        #: Data for the charts of the pages.
        self.charts = JobCharts(store)
        #: Figures for Prometheus.
        self.metrics = Metrics(store, dispatcher, clock)
        #: The cards, and what they have done.
        self.fleet = Fleet(store, dispatcher, self.metrics)
        #: What the cards did in the last day.
        self.fleet_history = FleetHistory(self.fleet, clock)
        #: Data for listings besides the jobs.
        self.overview = Overview(store, winners, self.fleet.num_fit, clock)
        helpers, clock_steps = Helpers(), ClockSteps(store, clock)
        self._runners = Runners(
            lambda target, worker, claims: Runner(
                store,
                dispatcher,
                target,
                worker,
                claims,
                disk_limit_bytes,
                finals or FinalsProcedure(),
                max_ahead,
                winners,
                clock,
                metrics=self.metrics,
                clock_steps=clock_steps,
                observers=observers,
                search=search,
                helpers=helpers,
            )
        )
        #: Background work in separate threads, in addition to the runners.
        self._beside: list[Remover | WebhookSender | FleetHistory] = [
            self.fleet_history,
            Remover(store, retention or Retention(), clock, leads, clock_steps),
            *([webhook_sender] if webhook_sender else []),
        ]
        dispatcher.watch(self._runners.join_in)

    def start(self) -> None:
        """Starts a runner per worker; workers that connect later get theirs then. Logs which installed kinds of ops
        cannot be used."""
        for why in broken_kinds().values():
            _log.error("a kind of op from a package cannot be used: %s", why)
        self._runners.start()
        for one in self._beside:
            one.start()

    def begin_drain(self) -> None:
        """Makes the runners end once their current trials are recorded. Does not wait; may be called repeatedly."""
        self._runners.begin_drain()

    def drain(self, timeout_s: float) -> None:
        """Returns when all trials on cards are recorded, or after `timeout_s`; open jobs continue at the next start."""
        self._runners.drain(timeout_s)

    def close(self) -> None:
        """Ends the runners, then closes the dispatcher and the store."""
        self.intake.close()
        self._runners.stop()
        for one in self._beside:
            one.stop()
        self._dispatcher.close()
        self._runners.join()
        for one in self._beside:
            one.join()
        self._store.close()

    def submit(
        self,
        spec: JobSpec,
        *,
        idempotency_key: str | None = None,
        body_digest: str = "",
        reuse: bool = False,
        caller: Caller = LOCAL,
        terms: JobTerms | None = None,
    ) -> tuple[JobRecord, bool]:
        """The job for `spec`, and whether it is new.

        If `caller` used the key before, or if the same problem is open, the existing job is returned; in the second
        case, the caller then shares it. With `reuse`, a solved problem returns the job with the best result.

        Raises:
            InvalidInput: there is no worker for the target, or the key was used with a different body.
        """
        asked = Submission(
            spec=spec,
            caller=caller,
            terms=terms or JobTerms(),
            idempotency_key=idempotency_key,
            body_digest=body_digest,
            reuse=reuse,
        )
        return self.intake.submit(asked).result()

    def job(self, job_id: str) -> JobRecord:
        """A job and its state, with a reason if it is open and its target has no worker.

        Raises:
            NotFound: no such job.
        """
        with self._store.read() as session:
            return self.submissions.with_wait(jobs.get(session, job_id))

    def jobs(self, *, cursor: str | None = None, limit: int = 50, **chosen: Any) -> Page[JobRecord]:
        """Jobs, newest first; `chosen` is described in `tuner.store.jobs.jobs.JobFilter`.

        Raises:
            InvalidInput: the cursor belongs to another listing, or the limit is out of range.
        """
        check_limit(limit)
        with self._store.read() as session:
            page = jobs.page(session, cursor, limit, jobs.JobFilter(**chosen))
        return Page(items=[self.submissions.with_wait(job) for job in page.items], next_cursor=page.next_cursor)

    def cancel(self, job_id: str, caller: Caller = LOCAL) -> JobRecord:
        """Cancels a job; a cancelled one stays cancelled. If others share its run, it continues without `caller`.

        Raises:
            NotFound: no such job.
            Forbidden: it belongs to somebody else.
            Conflict: the job has succeeded or failed.
        """
        return self.submissions.cancel(job_id, caller)

    def best(self, job_id: str) -> Best:
        """The result of a job; raises `NotFound` if there is no such job or result, with the reason."""
        with self._store.read() as session:
            job, best = jobs.get(session, job_id), bests.find(session, job_id)
        if best is None:
            waiting = "" if job.state.is_final else self.submissions.waiting(job.spec.target_id)
            why = waiting or _NO_RESULT_YET.get(job.state, f"it failed: {job.reason}")
            raise NotFound(f"{job_id} has no result: {why}")
        return best

    def beside(self, job_id: str, baselines: Sequence[Baseline]) -> Best:
        """The job's result with the times of a user's own programs. Only `tuner.tune` uses it, within one process; no
        request does.

        Raises:
            NotFound: no such job, or it has no result.
        """
        return time_beside(self._store, self._dispatcher, job_id, baselines)

    def ask_inspection(
        self,
        job_id: str,
        number: int,
        kind: InspectionKind,
        metrics: tuple[str, ...] | None = None,
        caller: Caller = LOCAL,
    ) -> tuple[Inspection, bool]:
        """Requests an inspection of a measured trial; also returns whether it is still pending.

        A repeated request returns the existing inspection, unless that one failed.

        Raises:
            NotFound: no such job or trial.
            InvalidInput: the trial was not measured, or has no generated kernel to trace.
            Conflict: no worker of this server measures on the job's target.
        """
        with self._store.write() as session:
            job, trial = jobs.get(session, job_id), trials.get(session, job_id, number)
            check_inspection(trial, kind)
            if waiting := self.submissions.unserved(job.spec.target_id):
                raise Conflict(f"{kind} of {job_id} cannot be collected: {waiting}")
            audit.append(session, caller, f"{kind}.ask", f"{job_id}/{number}", self._clock())
            return inspections.ask(session, job_id, number, kind, metrics, is_urgent=True, now=self._clock())

    def inspection(self, job_id: str, number: int, kind: InspectionKind) -> Inspection:
        """A trial's most recent inspection of one kind, with its result if there is one.

        Raises:
            NotFound: no such job or trial, or none was requested.
            InvalidInput: it was refused.
        """
        with self._store.read() as session:
            job = jobs.get(session, job_id)
            trials.get(session, job_id, number)
            inspection = inspections.newest(session, job_id, number, kind)
        if inspection is None:
            raise NotFound(
                f"trial {number} of {job_id} has no {kind}: it was not requested, or tuner gc removed "
                f"it; request it with POST /jobs/{job_id}/trials/{number}/{kind}"
            )
        if inspection.refusal is not None:
            raise InvalidInput(*inspection.refusal)
        return self._inspection_with_wait(inspection, job)

    def _inspection_with_wait(self, inspection: Inspection, job: JobRecord) -> Inspection:
        """The inspection, with a reason if it is pending and has no worker."""
        waiting = self.submissions.waiting(job.spec.target_id) if inspection.state is InspectionState.PENDING else ""
        return replace(inspection, reason=waiting) if waiting else inspection

    def inspections(self, job_id: str, numbers: Collection[int]) -> list[Inspection]:
        """All inspections of some of a job's trials, without results; of one kind, the newest is last."""
        with self._store.read() as session:
            job, found = jobs.get(session, job_id), inspections.of_trials(session, job_id, numbers)
        return [self._inspection_with_wait(inspection, job) for inspection in found]

    def find_best(self, question: Question) -> BestMatch:
        """The stored result that fits best, if it fits at least as well as the question's `match` requires.

        Raises:
            NotFound: none fits; the message describes the nearest one.
        """
        with self._store.read() as session:
            found = bests.closest(session, question, self._store.shapes)
        return check_match(found, question)

    def make_pack(self, order: PackOrder, caller: Caller = LOCAL) -> MadePack:
        """A signed pack of finished jobs for `caller`, which is stored; raises the same exceptions as
        `service.results.pack_maker`."""
        here = {target.id: environment for target, environment in self.targets()}.get(order.target_id)
        return make_pack(self._store, order, self._clock(), here.kernel_version if here else None, caller)

    def import_winners(self, target_id: str, winners: Sequence[Found], caller: Caller = LOCAL) -> int:
        """Stores winners of an external search for a target, from which later jobs may start; returns how many of them
        were new.
        """
        with self._store.write() as session:
            audit.append(session, caller, "winners.import", target_id, self._clock())
            return imports.add(session, target_id, winners, caller.owner, self._clock())

    def collect_garbage(self, limit_bytes: int | None = None) -> Freed:
        """Limits the disk space of artifacts, builds and samples of ended jobs; files of a result are kept."""
        return self._store.collect_garbage(self._disk_limit_bytes if limit_bytes is None else limit_bytes)

    def artifact(self, digest: str) -> bytes:
        """An artifact's content; raises `InvalidInput` if `digest` is malformed, `NotFound` if it is unknown."""
        return self._store.artifacts.get(digest)

    def signature(self, content: bytes) -> str:
        """This service's signature of some bytes, as the line of a signature file.

        Raises:
            SigningUnavailable: there is no key, and none can be created.
        """
        return signing_key(self._store.directory).sign(content).decode().strip()

    def targets(self) -> list[tuple[Target, Environment | None]]:
        """The GPU of a target; None if its worker does not know it."""
        return [(target, self._environment(target.id)) for target in self._dispatcher.targets]

    def _environment(self, target_id: str) -> Environment | None:
        try:
            return self._dispatcher.lane(target_id).environment()
        except WorkerError:
            return None

    def quarantine(self, target_id: str) -> Quarantine | None:
        """Why a target cannot be measured on now; None if it can."""
        return self._dispatcher.quarantine(target_id)

    def check_alive(self) -> None:
        """Uses neither the database nor a worker.

        Raises:
            WorkerError: a runner ended with an error, and only a restart helps.
        """
        self._runners.check_alive()

    def ready(self) -> dict[str, str]:
        """Why targets are in quarantine, by id; the service is ready while at least one is usable.

        Raises:
            StoreUnavailable: the database does not respond, or cannot be written.
            WorkerError: a runner has ended, every target is in quarantine, the cluster has no worker, or the server
                that should run the jobs does not respond.
        """
        self._store.ping()
        self._runners.check_ready()
        if trouble := self._leader_trouble():
            raise WorkerError(trouble)
        if absence := self._dispatcher.absence:
            raise WorkerError(f"no target can measure now: {absence}")
        ids = [target.id for target in self._dispatcher.targets]
        reasons = {id: quarantine.reason for id in ids if (quarantine := self._dispatcher.quarantine(id))}
        if ids and len(reasons) == len(ids):
            reasons_by_id = "; ".join(f"{id} is in quarantine: {reason}" for id, reason in reasons.items())
            raise WorkerError(f"no target can measure now: {reasons_by_id}")
        return reasons
