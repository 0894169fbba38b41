"""The same candidates measured twice, minutes apart and in a different order: how well a trial repeats, and its cost.

The speed-up over the library in the same rounds must repeat, since a search compares it. Times are only reported, as is
the library's own trial, which has no speed-up.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common.report import check_row
from benchmarks.common.setting import problem_of
from tests.support.on_card import fused, schedule
from tuner.core.problem.objective import Regime
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Evaluator, Problem, evaluate
from tuner.core.trial.outcome import Measured, Outcome
from tuner.ops.gemm.pairs import ffn_pair

#: |median of the ratios - 1|, and the maximum distance from 1 of 95 % of the ratios.
MEDIAN_BAR, P95_BAR = 0.01, 0.02
#: Minimum gap between a candidate's two measurements, seconds.
MIN_GAP_S = 60.0
#: Seconds of a trial that are neither building nor kernels.
OVERHEAD_BAR_S = 0.5
#: Seconds of load before each sample in the sustained regime: the minimum of a worker's timing.
LOAD_S = 0.08


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A pair, with suitable tilings: (tiles, stages, warps)."""

    m: int
    d_in: int
    d_hidden: int
    d_out: int
    tilings: tuple[tuple[tuple[tuple[int, int, int], ...], int, int], ...]

    @property
    def problem(self) -> Problem:
        """The problem in the regime for its number of rows."""
        workload = ffn_pair(
            m=self.m, d_in=self.d_in, d_hidden=self.d_hidden, d_out=self.d_out, activation=Activation.RELU
        )
        return problem_of(workload)

    @property
    def candidates(self) -> list[Candidate]:
        """The library, and ten of ours: each tiling fused with queues, fused with tickets, and in two launches with
        queues; and the first tiling in two launches with shares."""
        found = [Candidate(plan_kind=PlanKind.LIBRARY)]
        for tiles, stages, warps in self.tilings:
            queues, tickets, shares = (
                schedule(tiles, stages=stages, warps=warps, assignment=assignment)
                for assignment in (Assignment.STATIC, Assignment.TICKET, Assignment.SHARES)
            )
            found += [fused(queues), fused(tickets), Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=queues)]
            if len(found) == 4:
                found.append(Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=shares))
        return found


#: Llama-3-8B's pair at 16 rows, in burst; and a smaller one at 256 rows, under sustained load.
SHAPES = (
    Shape(
        m=16,
        d_in=4096,
        d_hidden=14336,
        d_out=4096,
        tilings=(
            (((16, 64, 128), (16, 32, 128)), 8, 4),
            (((16, 128, 128), (16, 32, 128)), 6, 4),
            (((16, 64, 64), (16, 64, 64)), 6, 4),
        ),
    ),
    Shape(
        m=256,
        d_in=2048,
        d_hidden=8192,
        d_out=2048,
        tilings=(
            (((128, 128, 64), (128, 128, 64)), 4, 8),
            (((64, 128, 64), (64, 64, 64)), 4, 8),
            (((64, 64, 64), (64, 64, 64)), 4, 4),
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One candidate, once through the evaluator."""

    problem: Problem
    candidate: Candidate
    outcome: Outcome
    #: When the run began, on the monotonic clock, and its duration, seconds.
    began_s: float
    wall_s: float

    @property
    def name(self) -> str:
        """Pair and candidate as text."""
        chosen = self.candidate
        return f"{self.problem.workload.describe()}: {chosen.plan_kind} {chosen.schedule or ''}".strip()


def draw_order(shapes: Sequence[Shape], seed: int, count: int | None) -> list[tuple[Problem, Candidate]]:
    """All candidates of the first pair, then all of the next. The order within a pair is drawn by `seed`; a pair has
    the library and the first `count` of our candidates, or all."""
    rng = random.Random(seed)
    order: list[tuple[Problem, Candidate]] = []
    for shape in shapes:
        candidates = shape.candidates[: count and count + 1]
        order += [(shape.problem, candidate) for candidate in rng.sample(candidates, len(candidates))]
    return order


def measure_all(evaluator: Evaluator, order: Iterable[tuple[Problem, Candidate]]) -> list[Run]:
    """Measures each candidate once, as in a job."""
    runs = []
    for problem, candidate in order:
        began_s = time.monotonic()
        outcome = evaluate(evaluator, problem, candidate)
        wall_s = time.monotonic() - began_s
        run = Run(problem=problem, candidate=candidate, outcome=outcome, began_s=began_s, wall_s=wall_s)
        result = f"{outcome.time_us:.2f} us" if isinstance(outcome, Measured) else outcome.reason
        print(f"    {wall_s:5.2f} s  {result}  {run.name}", flush=True)
        runs.append(run)
    return runs


def repeat_rows(first: Sequence[Run], again: Sequence[Run]) -> list[dict[str, Any]]:
    """`repeat_median` and `repeat_p95`, over our candidates; the latter is the minimum distance from 1 that contains 95
    % of the ratios.

    Raises:
        ValueError: a candidate was not measured, or there is none.
    """
    later = {(run.problem, run.candidate): run for run in again}
    each = [_pair(run, later[run.problem, run.candidate]) for run in first]
    ratios = [row["ratio"] for row in each if row["ratio"] is not None]
    if not ratios:
        raise ValueError("there are none of our candidates to compare")
    middle = statistics.median(ratios)
    distances = [abs(ratio - 1) for ratio in ratios]
    p95 = float(np.quantile(distances, 0.95, method="inverted_cdf"))
    within = sum(distance <= P95_BAR for distance in distances) / len(distances)
    return [
        check_row("repeat_median", abs(middle - 1), MEDIAN_BAR, median=round(middle, 5), of=len(ratios), each=each),
        check_row("repeat_p95", p95, P95_BAR, share_within=round(within, 4), worst=round(max(distances), 5)),
    ]


def _pair(first: Run, again: Run) -> dict[str, Any]:
    """Two measurements of one candidate side by side."""
    a, b = _measured(first), _measured(again)
    is_ours = first.candidate.plan_kind.is_ours
    return {
        "candidate": first.name,
        "regime": str(first.problem.objective.regime),
        "gap_s": round(again.began_s - first.began_s, 1),
        "ratio": b.speedup / a.speedup if is_ours else None,
        "speedups": [a.speedup, b.speedup],
        "time_ratio": b.time_us / a.time_us,
        "times_us": [a.time_us, b.time_us],
        "libraries_us": [a.library_us, b.library_us],
        "metrics": [{metric.tag: metric.value for metric in one.metrics if _explains(metric.tag)} for one in (a, b)],
    }


def _explains(tag: str) -> bool:
    """Whether a metric may explain a difference between two measurements: clocks, rounds, the library's algorithms."""
    return tag.startswith(("sm_clock", "library_", "num_rounds", "dropped_", "foreign_"))


def _measured(run: Run) -> Measured:
    if isinstance(run.outcome, Measured):
        return run.outcome
    raise ValueError(f"{run.name} was not measured: {run.outcome.reason}")


def kernel_s(outcome: Measured) -> float:
    """Minimum seconds in which the card ran the samples of a trial: their chains, and in `sustained` the load before
    each, but at most its `time` stage. Checks, flushes, pauses and warm-ups are left out."""
    assert outcome.procedure is not None
    samples_us = [us for one in outcome.rounds for us in (one.time_us, one.library_us) if us is not None]
    loads_s = LOAD_S * len(samples_us) if outcome.procedure.regime is Regime.SUSTAINED else 0.0
    chains_s = 1e-6 * outcome.procedure.chain_length * sum(samples_us)
    return min(chains_s + loads_s, outcome.stage_s.get("time", 0.0))


def overhead_row(runs: Iterable[Run]) -> dict[str, Any]:
    """`overhead_s`: the median over trials of the wall time of `evaluate`, minus its `build`, minus `kernel_s`.

    The card ran for at least that time, so this is an upper bound of the overhead. In `start`, a pair's first trial
    also waits for inputs and references.

    Raises:
        ValueError: nothing was measured.
    """
    overheads: list[float] = []
    stages: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if isinstance(run.outcome, Measured):
            overheads.append(run.wall_s - run.outcome.stage_s.get("build", 0.0) - kernel_s(run.outcome))
            for stage, seconds in run.outcome.stage_s.items():
                stages[stage].append(seconds)
    if not overheads:
        raise ValueError("no trial was measured")
    return check_row(
        "overhead_s",
        statistics.median(overheads),
        OVERHEAD_BAR_S,
        of=len(overheads),
        worst=round(max(overheads), 4),
        stage_s_median={stage: round(statistics.median(values), 5) for stage, values in stages.items()},
        each=[round(seconds, 4) for seconds in overheads],
    )
