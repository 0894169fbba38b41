"""Common code of benchmarks on a card, or on a simulated one: options, evaluator, problem."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.common.program import parser_of
from tuner.core.problem.gpu import SIMULATED_PREFIX, parse_target
from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective, default_regime
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator


def read_options(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """`gpu`, `quick` and `out` from the command line."""
    parser = parser_of(description, "gpu", "out")
    parser.add_argument("--quick", action="store_true", help="a short run, only to check that the program works")
    return parser.parse_args(arguments)


def twin_of(gpu: str) -> SimulatedEvaluator | None:
    """The simulated GPU of that name, without faults; None for a real one."""
    if not gpu.startswith(SIMULATED_PREFIX):
        return None
    return SimulatedEvaluator(parse_target(gpu), faults=Faults(hang=0, crash=0, wrong_numbers=0))


def problem_of(workload: Workload) -> Problem:
    """A cold problem, in the regime for its number of rows."""
    return Problem(workload=workload, objective=Objective(regime=default_regime(workload)), seed=1)
