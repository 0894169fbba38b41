"""What the service adds to a trial: time between consecutive outcomes, one at a time, less what the evaluator took.

python -m benchmarks.cpu.service [--trials 1000] [--out benchmarks/results/cpu/service.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import ffn_pair
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Preparation, Prepared, Problem
from tuner.core.trial.job import Budget, JobSpec, Objective, Trial
from tuner.core.trial.outcome import Outcome
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.service.paging import MAX_PAGE
from tuner.store import Store
from tuner.workers.simulated.evaluator import SimulatedEvaluator

TARGET = "simulated:h200"
#: Trials whose median is told, from the first and from the last one on.
WINDOW = 20


class TimedEvaluator(SimulatedEvaluator):
    """The twin, noting how long each trial took it, where one follows the other."""

    def __init__(self) -> None:
        super().__init__(parse_target(TARGET))
        self.spent_s: list[float] = []

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """The twin's."""
        begin_s = time.perf_counter()
        preparation = super().prepare(problem, candidate)
        self.spent_s.append(time.perf_counter() - begin_s)
        return preparation

    def measure(
        self,
        problem: Problem,
        prepared: Prepared,
        incumbent_speedup: float | None = None,
    ) -> Outcome:
        """The twin's."""
        begin_s = time.perf_counter()
        outcome = super().measure(problem, prepared, incumbent_speedup)
        self.spent_s[-1] += time.perf_counter() - begin_s
        return outcome


def overheads_s(m: int, num_trials: int) -> list[float]:
    """Overhead of the trials 1, 2, ... of one simulated job, seconds; the first trial has none before it."""
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


def all_trials(service: Service, job_id: str) -> Iterator[Trial]:
    """Every trial of a job, by number."""
    page = service.trials(job_id, limit=MAX_PAGE)
    yield from page.items
    while page.next_cursor:
        page = service.trials(job_id, limit=MAX_PAGE, cursor=page.next_cursor)
        yield from page.items


def measure(m: int, num_trials: int) -> dict[str, Any]:
    """One row: medians at both ends, and the whole."""
    overhead_ms = [1e3 * overhead for overhead in overheads_s(m, num_trials)]
    return {
        "pair": "ffn",
        "m": m,
        "dims": [4096, 14336, 4096],
        "trials": num_trials,
        "overhead_ms_median_first": median(overhead_ms[:WINDOW]),
        "overhead_ms_median_last": median(overhead_ms[-WINDOW:]),
        "overhead_ms_mean": sum(overhead_ms) / len(overhead_ms),
        "overhead_ms_max": max(overhead_ms),
    }


def main() -> None:
    """Measures and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/service.json"))
    arguments = parser.parse_args()
    rows = [measure(m, arguments.trials) for m in (16, 512)]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    meta = {
        "gpu": "none (simulated NVIDIA H200)",
        "driver": "",
        "cuda": "",
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "command": " ".join(["python", "-m", "benchmarks.cpu.service", *sys.argv[1:]]),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    others = [row for row in before if "check" in row]  # of other programs
    arguments.out.write_text(json.dumps({"meta": meta, "rows": [*rows, *others]}, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
