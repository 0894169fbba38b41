"""The quality of the search on the simulated GPU, compared with the exhaustive best and with random draws.

python -m tests.soak.searches [--size 100] [--seed 1]

The forecast that seeds the search is the one that the simulated GPU perturbs: the perturbation is larger than the
differences between the best schedules, so the first guesses alone do not pass.
"""

from __future__ import annotations

import random
from functools import cache, cached_property
from statistics import median

from tests.soak.program import Program, Row, Step, main
from tuner.core.model.bounds import reference_us
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.problem.gpu import Gpu, parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.space.mma_tilings import MmaTilings
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem, evaluate
from tuner.core.trial.job import Objective, Trial
from tuner.core.trial.outcome import Measured
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search import Searcher
from tuner.search.guesses.seeds import forecast_us
from tuner.workers.simulated.evaluator import SimulatedEvaluator

TARGET = parse_target("simulated:h200")
PROBLEM = Problem(workload=ffn_pair(m=16, d_in=1024, d_hidden=4096, d_out=1024), objective=Objective())
NUM_TRIALS = 30
#: Candidates in progress at a time in the searches that are compared with sequential ones.
DEPTH = 8

TILE_NS = (64, 128)


def _is_plain(tiling: Tiling) -> bool:
    rings = (tiling.input_stages, tiling.window)
    return rings == (6, 0) and max(tiling.split_k, default=1) <= 4 and all(t.n in TILE_NS for t in tiling.tiles)


class NarrowTilings(MmaTilings):
    """Fewer tile sizes, and no splits."""

    tile_ks = (64, 128)

    def tile_ns(self, op: int) -> tuple[int, ...]:
        return TILE_NS

    def parts(self, op: int, tile: Tile) -> tuple[int, ...]:
        return (1,)


class Narrow(Space):
    """Fewer tilings, rings, run-aheads and grids, so that all schedules are simulated in half a minute."""

    run_aheads = (100,)

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        super().__init__(workload, gpu)
        self._mma = NarrowTilings(workload, gpu)

    def grids(self, graph: TileGraph) -> tuple[tuple[int, int], ...]:
        return ((1, 0),)

    @cached_property
    def tilings(self) -> tuple[Tiling, ...]:
        return tuple(t for t in super().tilings if t.engine is Engine.MMA or _is_plain(t))

    @property
    def guesses(self) -> list[Tiling]:
        return [tiling for tiling in super().guesses if _is_plain(tiling)]

    @cached_property
    def everything(self) -> frozenset[Schedule]:
        return frozenset(self)

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        return [near for near in super().neighbours(schedule) if near in self.everything]


SPACE = Narrow(PROBLEM.workload, TARGET.gpu)


@cache
def forecasts() -> dict[Candidate, float]:
    """The noise-free forecast of every fused schedule of the space."""
    fused = (Candidate(plan_kind=PlanKind.FUSED, schedule=schedule) for schedule in SPACE)
    return {candidate: forecast_us(SPACE, candidate) for candidate in fused}


class Machine:
    """A simulated GPU, and the true time of every schedule on it."""

    def __init__(self, forecasts: dict[Candidate, float], seed: int) -> None:
        self.evaluator = SimulatedEvaluator(TARGET, seed=seed)
        floor_us = reference_us(PROBLEM.workload, TARGET.gpu)
        self.true_us = {c: max(us * self.evaluator.slowdown(c), floor_us) for c, us in forecasts.items()}
        self.best_us = min(us for c, us in self.true_us.items() if not self.evaluator.has_fault(c))

    def reached(self, candidates: list[Candidate]) -> float:
        """The time of the exhaustive best divided by the true time of the candidate that measured best, among those of
        the space: a first guess may have signals that the space does not offer."""
        held = [candidate for candidate in candidates if candidate in self.true_us]
        outcomes = [(evaluate(self.evaluator, PROBLEM, candidate), candidate) for candidate in held]
        measured = [(outcome.time_us, candidate) for outcome, candidate in outcomes if isinstance(outcome, Measured)]
        return self.best_us / self.true_us[min(measured, key=lambda item: item[0])[1]]

    def search(self, seed: int, depth: int) -> list[Candidate]:
        """The fused candidates of one search with `depth` of them in flight."""
        searcher, tried, known = Searcher(SPACE, seed=seed), list[Candidate](), list[int]()
        for number in range(NUM_TRIALS):
            while len(tried) < min(NUM_TRIALS, number + depth):
                candidate = searcher.ask()
                assert candidate is not None
                tried.append(candidate)
                known.append(number)
            searcher.tell(
                Trial(
                    number=number,
                    num_known=known[number],
                    candidate=tried[number],
                    outcome=evaluate(self.evaluator, PROBLEM, tried[number]),
                    started_at=0,
                    finished_at=0,
                )
            )
        return [candidate for candidate in tried if candidate.plan_kind is PlanKind.FUSED]


def work(step: Step) -> list[Row]:
    """A row for each seed: the shares that a search reached with one candidate at a time and with several in flight;
    the share that as many random draws reached; and whether the first guess is the best.

    A share is the exhaustive best's time divided by that of the schedule found.
    """
    rows = []
    for seed in range(step.first, step.first + step.count):
        machine = Machine(forecasts(), seed)
        drawn = random.Random(seed).sample(list(forecasts()), NUM_TRIALS - 1)
        guess = min(forecasts(), key=lambda candidate: forecasts()[candidate])
        rows.append(
            {
                "seed": seed,
                "searched": machine.reached(machine.search(seed, 1)),
                "searched_ahead": machine.reached(machine.search(seed, DEPTH)),
                "drawn": machine.reached(drawn),
                "guessed": machine.true_us[guess] == machine.best_us,
            }
        )
    return rows


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that 30 trials reach 95 per cent of the exhaustive best and are better than random draws, and that the
    forecast alone seldom names the best schedule; otherwise the search would only repeat its forecast."""
    drawn, faults = [row["drawn"] for row in rows], list[str]()
    for depth, figure in ((1, "searched"), (DEPTH, "searched_ahead")):
        searched = [row[figure] for row in rows]
        # Many schedules of this space are within a per cent of the best, so a random draw is sometimes better than a
        # search.
        checks = {
            "8 of 10 searches reach 95 per cent": 10 * sum(share >= 0.95 for share in searched) >= 8 * len(rows),
            "the worst search is better than the worst random sample": min(searched) > min(drawn),
            "the median search is better than the median random sample": median(searched) > median(drawn),
            "searches are better on average": sum(searched) > sum(drawn),
        }
        shares = f"searched {sorted(searched)}, drawn {sorted(drawn)}"
        faults += [f"not so at depth {depth}: {check}; {shares}" for check, holds in checks.items() if not holds]
    if 10 * sum(row["guessed"] for row in rows) > 2 * len(rows):
        faults.append("at most 2 of 10 first guesses are the best")
    return rows, faults


PROGRAM = Program(name="searches", unit="searches", size=100, step=1, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
