"""A server without HTTP, to be killed: works off whatever is open in a data directory.

Arguments: the directory, seconds per trial, seconds of the finals, of counting, and of a build; four at a time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import FinalsTimes, Problem
from tuner.core.trial.inspection import CounterReport
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.store import Store
from tuner.workers.simulated.evaluator import SimulatedEvaluator


class SlowEvaluator(SimulatedEvaluator):
    """The twin, taking its time over finals and counters."""

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **asked: Any) -> FinalsTimes:
        time.sleep(float(sys.argv[3]))
        return super().finals(problem, candidates, **asked)

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        time.sleep(float(sys.argv[4]))
        return super().count(problem, candidate, metrics)


if __name__ == "__main__":
    twin = SlowEvaluator(parse_target("simulated:h200"), latency_s=float(sys.argv[2]), build_s=float(sys.argv[5]))
    Service(Store.open(Path(sys.argv[1])), LocalDispatcher([twin], num_places=4)).start()
    print("started", flush=True)
    time.sleep(600)
