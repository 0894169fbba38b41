"""What the jobs of a ladder share: priors, trials, finalists."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from tuner.core.legal.legality import check_candidate
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.joint import AnySpace
from tuner.core.trial.job import Trial
from tuner.core.trial.ladders.batch import MOST_SHARED, BatchStep
from tuner.core.trial.ladders.ladder import Measurement, Option, choose_kernels, kernel_name
from tuner.core.trial.outcome import Measured
from tuner.core.trial.priors import Found
from tuner.core.trial.records import JobRecord
from tuner.errors import IllegalSchedule
from tuner.search.guesses.rings import with_deepest_weights
from tuner.search.guesses.seeds import by_slice
from tuner.search.model.pool import canonical
from tuner.store import Store
from tuner.store.jobs import batches

#: Number of each job's fastest candidates that the other jobs try.
NUM_SHARED = 2
#: Number of tried candidates that are the job's own fastest kernels in different orders, which need no build.
NUM_REORDERED = 5
#: Number of a job's fastest candidates that represent it.
NUM_KNOWN = 12
#: Kernels within this relative distance of the fastest are treated as equally good in the search, which is less precise
#: than finals.
SEARCH_SLACK = 0.02
#: Maximum number of finalists that a job adds for its ladder, and their maximum relative distance from its fastest.
MOST_FINALISTS = 4
FINALISTS_SLACK = 0.03


class GivenCandidates:
    """Returns given candidates in order; used instead of a searcher."""

    #: Always false: no choice depends on an outcome.
    waits_for_all = False

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._left = deque(candidates)

    def ask(self) -> Candidate | None:
        """The next candidate; None at the end."""
        return self._left.popleft() if self._left else None

    def tell(self, trial: Trial) -> None:
        """Outcomes change nothing."""

    def think_ahead(self) -> bool:
        """Nothing to prepare."""
        return False

    def wind_up(self) -> None:
        """Drops the remaining candidates."""
        self._left.clear()


def given_to(job: JobRecord, past: Sequence[Trial]) -> GivenCandidates:
    """The candidates that a job was given, besides the library, and has not tried."""
    done = {trial.candidate for trial in past}
    return GivenCandidates(one for one in dict.fromkeys((LIBRARY, *job.spec.tried)) if one not in done)


class LadderJobs:
    """Reads the results of a ladder's other jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def are_behind(self, job: JobRecord) -> bool:
        """Whether other jobs of the ladder are behind `job`, which must wait for them.

        Raises:
            StoreUnavailable: the database stays locked.
        """
        with self._store.read() as session:
            return batches.is_behind(session, job.id)

    def found(self, job: JobRecord, kernel_version: str) -> list[Found]:
        """Priors for `job` from the other jobs of its ladder that have searched; empty if it was submitted alone."""
        return [
            Found(
                workload=sibling.spec.workload,
                objective=sibling.spec.objective,
                candidate=trial.candidate,
                time_us=trial.outcome.time_us,
                speedup=trial.outcome.speedup,
                source=sibling.id,
                kernel_version=kernel_version,
            )
            for sibling, trials in self._known(job)
            if (sibling.batch_step or 0) > BatchStep.SEARCH or sibling.state.is_final
            for trial in trials
            if isinstance(trial.outcome, Measured)
        ]

    def to_try(self, job: JobRecord, space: AnySpace, past: Iterable[Trial]) -> tuple[Candidate, ...]:
        """Candidates that `job` has not tried: its fastest kernels, overall and fused, as one launch with waits by
        slice, which a short search does not reach; its fastest kernel in the orders of the other jobs; these with
        deeper rings; then the kernels of the other jobs, if they can serve its rows."""
        near = sorted(self._known(job), key=lambda one: _octaves(one[0], job))
        offered = dict.fromkeys(trial.candidate for _, trials in near for trial in trials[:NUM_SHARED])
        past = tuple(past)
        fastest = _own_fastest(past)
        sliced = (one for own in fastest for one in _by_slice(space, own))
        reordered = chain(sliced, *(in_orders_of(own, offered) for own in fastest[:1]))
        tried = {trial.candidate for trial in past}

        def new(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
            return (one for one in dict.fromkeys(candidates) if one not in tried and _is_legal(space, one))

        first = islice(new(reordered), NUM_REORDERED)
        return tuple(islice(dict.fromkeys(chain(first, new(new_kernels(space, past)), new(offered))), MOST_SHARED))

    def finalists(self, job: JobRecord, past: Sequence[Trial]) -> tuple[Trial, ...]:
        """Trials of `job` that its finals should include for the ladder: `job`'s fastest trials of the kernels that
        could serve all rows of the ladder."""
        known = self._known(job)
        if not known:
            return ()
        with self._store.read() as session:
            own = batches.fastest(session, job.id, NUM_KNOWN)
        measurements = [_measurement(one, trials) for one, trials in (*known, (job, own))]
        chosen, _ = choose_kernels([one for one in measurements if one is not None], SEARCH_SLACK)
        workload = job.spec.workload
        near = [trial for trial in own if _time_us(trial) <= (1 + FINALISTS_SLACK) * _time_us(own[0])]
        numbers = [trial.number for trial in near if kernel_name(trial.candidate, workload) in chosen]
        by_number = {trial.number: trial for trial in past}
        return tuple(by_number[number] for number in numbers[:MOST_FINALISTS])

    def _known(self, job: JobRecord) -> list[tuple[JobRecord, list[Trial]]]:
        """The other jobs of the ladder, each with its fastest trials."""
        with self._store.read() as session:
            return [(one, batches.fastest(session, one.id, NUM_KNOWN)) for one in batches.siblings_of(session, job)]


def _own_fastest(past: Iterable[Trial]) -> tuple[Candidate, ...]:
    """A job's fastest candidate, and its fastest fused one if that is different."""
    known = [trial for trial in past if trial.candidate.schedule is not None]
    fastest = [trial.candidate for trial in sorted(known, key=_time_us)]
    fused = [one for one in fastest if one.plan_kind.is_fused]
    return tuple(dict.fromkeys((*fastest[:1], *fused[:1])))


def new_kernels(space: AnySpace, past: Iterable[Trial]) -> Iterator[Candidate]:
    """The candidates that a job will try and has to build, as far as known now: its fastest kernels with the deepest
    rings of weights that fit. These depend more on the job's rows than on other jobs' results. Empty for attentions."""
    for own in _own_fastest(past):
        if own.schedule is None or own.schedule.launch_ops:
            continue
        tiling = with_deepest_weights(space.workload, space.gpu, own.schedule.tiling)
        yield replace(own, schedule=own.schedule.but(tiling=tiling))


def in_orders_of(own: Candidate, others: Iterable[Candidate]) -> Iterator[Candidate]:
    """A candidate's kernel, unchanged, in the order of each other candidate whose ops share launches in the same
    way."""
    kind = own.plan_kind
    for other in others:
        pair = kind, other.plan_kind
        is_alike = len({(one.is_fused, one.is_in_runs, one.is_joined) for one in pair}) == 1
        if is_alike and own.schedule is not None and other.schedule is not None:
            yield replace(own, schedule=own.schedule.but(ordering=other.schedule.ordering))


def _by_slice(space: AnySpace, own: Candidate) -> Iterator[Candidate]:
    """The kernel of a candidate in one launch, programmatic if its launches are, with waits by slice."""
    is_programmatic = own.plan_kind.is_programmatic
    kind = next(one for one in PlanKind if one.is_fused and one.is_programmatic == is_programmatic)
    for schedule in (
        by_slice(space, canonical(kind, own.schedule)) if own.schedule and not own.plan_kind.is_joined else ()
    ):
        yield Candidate(plan_kind=kind, schedule=schedule)


def _octaves(one: JobRecord, other: JobRecord) -> float:
    return abs(math.log2(one.spec.workload.batch_size / other.spec.workload.batch_size))


def _time_us(trial: Trial) -> float:
    return trial.outcome.time_us if isinstance(trial.outcome, Measured) else math.inf


def _is_legal(space: AnySpace, candidate: Candidate) -> bool:
    if candidate.schedule is None:
        return False
    try:
        check_candidate(space.workload, space.gpu, candidate)
    except IllegalSchedule:
        return False
    return True


def _measurement(job: JobRecord, trials: Sequence[Trial]) -> Measurement | None:
    """The measurements of a job's search, in the same form as those of finals; None if there are none."""
    outcomes = [(trial.candidate, trial.outcome) for trial in trials if isinstance(trial.outcome, Measured)]
    if not outcomes:
        return None
    workload = job.spec.workload
    options = tuple(
        Option(
            name=kernel_name(candidate, workload),
            time_us=outcome.library_us / outcome.speedup,
            speedup=outcome.speedup,
            speedup_ci95=None,
        )
        for candidate, outcome in outcomes
    )
    library_us = min(outcome.library_us for _, outcome in outcomes)
    return Measurement(m=workload.batch_size, job_id=job.id, library_us=library_us, options=options)
