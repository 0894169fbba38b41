"""Candidates under sustained load whose preview and whose rounds are both known: where a replay of the rule takes them.

Three sources. A search in which nothing is dropped. The winners that ship with the program for a row. And the fastest
of these in other orders, which need no other build, and many of which end near it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common.jobs import jobs_over
from benchmarks.common.kept import kept_for
from benchmarks.common.rows import Row
from benchmarks.search.timed import LentEvaluator
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.space.space import space_of
from tuner.core.trial.evaluator import Evaluator, Preparation, Prepared, Problem
from tuner.core.trial.job import Budget, JobSpec, PriorsChoice, Regime
from tuner.core.trial.outcome import Measured, Outcome
from tuner.core.trial.samples import Round, kept, previews, speedups, speedups_at_one_clock
from tuner.core.trial.stats import median
from tuner.errors import IllegalSchedule, PlanError
from tuner.search.pool import canonical
from tuner.winners import ShippedWinners

#: Builds at once: as many wait for the builder's processes, which are one a core.
_NUM_AHEAD = 32
#: Of finals, which nobody reads here.
_NUM_ROUNDS = 5
#: Of a search, more than it takes.
_LIMIT_S = 3600.0

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One candidate of a search."""

    #: Library time over its own: at one clock in each short sample, and in each round that counts.
    previewed: tuple[float, ...]
    rounds: tuple[float, ...]
    #: Seconds of the card that the rounds took.
    rounds_s: float

    @property
    def speedup(self) -> float:
        """Where it ended."""
        return median(self.rounds)

    @staticmethod
    def from_json(data: Json) -> Seen:
        """Inverse of `vars`, as JSON."""
        return Seen(**data | {"previewed": tuple(data["previewed"]), "rounds": tuple(data["rounds"])})


def seen_of(rounds: Sequence[Round]) -> Seen | None:
    """The raw samples of a trial; None where it was not previewed, or no round of it counts."""
    previewed, counted = speedups_at_one_clock(previews(rounds)), speedups(kept(rounds))
    if not previewed or not counted:
        return None
    return Seen(previewed=tuple(previewed), rounds=tuple(counted), rounds_s=_rounds_s(rounds))


def _rounds_s(rounds: Iterable[Round]) -> float:
    """What rounds take: 40 ms each for a sample of the candidate, half of one of the library, and a load."""
    return 2.5 * 0.04 * sum(one.dropped is None for one in rounds)


def _sustained(row: Row) -> Problem:
    return replace(row.problem, objective=replace(row.problem.objective, regime=Regime.SUSTAINED))


class Undropping(LentEvaluator):
    """Gives every candidate its rounds, since it compares none with the best so far."""

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Outcome:
        """Checks and times."""
        return super().measure(problem, prepared)


def of_search(evaluator: Evaluator, row: Row, seed: int, num_trials: int) -> list[Seen]:
    """A job without priors in which nothing is dropped; candidates that were not measured are left out."""
    with ThreadPoolExecutor(1) as thread, TemporaryDirectory() as data:
        lent = Undropping(evaluator, thread)
        with jobs_over(lent, winners=ShippedWinners(), num_rounds=_NUM_ROUNDS, data=Path(data)) as jobs:
            spec = JobSpec(
                workload=row.workload,
                target_id=jobs.target_id,
                objective=_sustained(row).objective,
                budget=Budget(trials=num_trials, seconds=_LIMIT_S),
                seed=seed,
                priors=PriorsChoice.NONE,
            )
            ended = jobs.end(jobs.begin(spec))
    return [seen for trial in ended.trials if trial.candidate.plan_kind.is_ours for seen in _seen(trial.outcome)]


def _seen(outcome: Outcome) -> list[Seen]:
    one = seen_of(outcome.rounds) if isinstance(outcome, Measured) else None
    return [one] if one else []


def of_winners(evaluator: Evaluator, rows: Sequence[Row]) -> Iterator[tuple[str, list[Seen]]]:
    """Row by row, the kept winners, the fastest first."""
    gpu_id = evaluator.target.gpu.id
    yield from _of_candidates(evaluator, rows, lambda row: [one.candidate for one in kept_for(row.name, gpu_id)])


def of_orders(evaluator: Evaluator, rows: Sequence[Row], count: int) -> Iterator[tuple[str, list[Seen]]]:
    """Row by row, the fastest kept winner, then its kernel in so many other orders."""
    gpu = evaluator.target.gpu

    def orders(row: Row) -> list[Candidate]:
        return [
            one for kept in kept_for(row.name, gpu.id)[:1] for one in in_other_orders(row, gpu, kept.candidate, count)
        ]

    yield from _of_candidates(evaluator, rows, orders)


def in_other_orders(row: Row, gpu: Gpu, best: Candidate, count: int) -> list[Candidate]:
    """A candidate of a row; then so many of those that differ from it in one axis and are launched by the same kernel:
    of twice as many that are drawn, those of the shortest forecasts, since what ends near the best is wanted."""
    kind, schedule = best.plan_kind, best.schedule
    if schedule is None:
        return [best]
    near = space_of(row.workload, gpu).neighbours(schedule)
    others = dict.fromkeys(canonical(kind, one) for one in near if one.tiling == schedule.tiling)
    others.pop(schedule, None)
    drawn = random.Random(row.name).sample(list(others), min(2 * count, len(others)))
    candidates = [Candidate(plan_kind=kind, schedule=one) for one in drawn]
    return [best, *sorted(candidates, key=lambda one: _forecast_us(row, gpu, one))[:count]]


def _forecast_us(row: Row, gpu: Gpu, candidate: Candidate) -> float:
    """Infinity where its plan is refused."""
    try:
        return forecast_us(row.workload, gpu, candidate)
    except (IllegalSchedule, PlanError):
        return math.inf


def _of_candidates(
    evaluator: Evaluator, rows: Sequence[Row], of: Callable[[Row], Iterable[Candidate]]
) -> Iterator[tuple[str, list[Seen]]]:
    """Row by row, what becomes of its candidates; those of all rows are chosen and built ahead."""
    with ThreadPoolExecutor(_NUM_AHEAD) as builds:

        def begin(row: Row) -> list[Future[Preparation]]:
            return [builds.submit(evaluator.prepare, _sustained(row), one) for one in of(row)]

        preparing = [builds.submit(begin, row) for row in rows]
        try:
            for row, begun in zip(rows, preparing, strict=True):
                found = list[Seen]()
                for build in begun.result():
                    prepared = build.result()
                    if isinstance(prepared, Prepared):
                        found += _seen(evaluator.measure(_sustained(row), prepared))
                yield row.name, found
        finally:
            builds.shutdown(cancel_futures=True)
