"""The service's overhead per trial: time between consecutive outcomes, one at a time, minus the evaluator's time.

python -m benchmarks.cpu.service [--trials 1000] [--out benchmarks/results/cpu/service.json]

Without candidates ahead, each trial waits for its choice, so these rows have no target. It needs an otherwise idle
machine. Rows of other programs in the file are kept.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.common.jobs import all_trials
from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, figure_row, merge_report
from benchmarks.cpu.best import RESULTS, TARGET
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Preparation, Prepared, Problem
from tuner.core.trial.job import Budget, JobSpec, Objective
from tuner.core.trial.outcome import Outcome
from tuner.dispatch import LocalDispatcher
from tuner.ops.gemm.pairs import ffn_pair
from tuner.service import Service
from tuner.store import Store
from tuner.workers.simulated.evaluator import SimulatedEvaluator

#: Number of trials in each reported median, one from the start and one at the end.
WINDOW = 20


class TimedEvaluator(SimulatedEvaluator):
    """The simulated GPU, with the time of each trial, for sequential trials."""

    def __init__(self) -> None:
        super().__init__(parse_target(TARGET))
        self.spent_s: list[float] = []

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """The simulated GPU's."""
        begin_s = time.perf_counter()
        preparation = super().prepare(problem, candidate)
        self.spent_s.append(time.perf_counter() - begin_s)
        return preparation

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Outcome:
        """The simulated GPU's."""
        begin_s = time.perf_counter()
        outcome = super().measure(problem, prepared, incumbent_speedup)
        self.spent_s[-1] += time.perf_counter() - begin_s
        return outcome


def overheads_s(m: int, num_trials: int) -> list[float]:
    """Overhead of the trials 1, 2, ... of one simulated job, seconds; the first trial has no predecessor."""
    workload = ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096)
    budget = Budget(trials=num_trials, seconds=3600)
    spec = JobSpec(workload=workload, target_id=TARGET, objective=Objective(), budget=budget)
    evaluator = TimedEvaluator()
    with tempfile.TemporaryDirectory() as directory:
        service = Service(Store.open(Path(directory)), LocalDispatcher([evaluator]), max_ahead=0)
        service.start()
        job, _ = service.submit(spec)
        while not job.state.is_final:
            time.sleep(0.1)
            job = service.job(job.id)
        finished_at = [trial.finished_at for trial in all_trials(service, job.id)]
        service.close()
    gaps = [after - before for before, after in pairwise(finished_at)]
    return [gap - spent for gap, spent in zip(gaps, evaluator.spent_s[1:], strict=True)]


def row_of(m: int, overheads_s: list[float]) -> dict[str, Any]:
    """A row: the mean, the medians at both ends and the maximum."""
    raw = {
        "trials": len(overheads_s) + 1,
        "median_first_s": round(median(overheads_s[:WINDOW]), 6),
        "median_last_s": round(median(overheads_s[-WINDOW:]), 6),
        "longest_s": round(max(overheads_s), 6),
    }
    return figure_row(f"overhead of a trial on one machine, none ahead, {m} rows, seconds", fmean(overheads_s), **raw)


def main() -> None:
    """Measures and writes its rows into the results file."""
    arguments = parser_of(__doc__, trials=1000, out=RESULTS).parse_args()
    for m in (16, 512):
        row = row_of(m, overheads_s(m, arguments.trials)) | {"load_average": os.getloadavg()[0]}
        merge_report(arguments.out, [row], NO_GPU)


if __name__ == "__main__":
    main()
