"""What builds ahead cost a machine of two cores: a job, and its builds alone.

python -m benchmarks.cpu.search [--trials 60] [--row decode-plain/llama3-8b/m16 ...] [--out FILE]

The evaluator proves, renders and builds by NVRTC, as a card's does, and measures by the simulated twin. So all that the
service does besides has to find its time beside the compiler. The process keeps to two cores, where there are more. A
job without priors runs from its submission to its verdict, in a service with an empty folder. Then the sources that it
compiled are compiled again from an empty cache, by as many processes as the job had, and nothing else runs. A job may
take 5 % and two seconds more than its builds.

Nothing else should run on the machine: both times are wall times.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import Ended, jobs_over
from benchmarks.common.report import NO_GPU, check_row, write_report
from benchmarks.common.rows import Row, choose_rows
from benchmarks.common.workbench import Watch
from tuner.core.problem.gpu import Target, parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Preparation, Prepared, Problem
from tuner.core.trial.job import Budget, JobSpec, PriorsChoice
from tuner.winners import ShippedWinners
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.places import places_here
from tuner.workers.builder.prepare import PreparedKernel, try_prepare
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

NUM_CORES = 2
DEFAULT_ROWS = ("decode-plain/llama3-8b/m16", "decode-swiglu/llama65b-tp8/m64")
#: What a job may take beyond its builds: a share of these, and seconds.
SHARE, SECONDS = 0.05, 2.0


class BuildingModel(SimulatedEvaluator):
    """Builds as a card's evaluator does, and measures as the simulated GPU."""

    def __init__(self, target: Target, builder: Builder) -> None:
        """`builder` ends with it."""
        super().__init__(target, faults=Faults(hang=0, crash=0, wrong_numbers=0))
        self._builder = builder
        #: What was compiled, by key.
        self.sources: dict[str, str] = {}

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """Proves, renders, builds; then has the simulated GPU say how long it would take."""
        ready = try_prepare(problem.workload, self.target.gpu, candidate, self._builder)
        if not isinstance(ready, PreparedKernel):
            return ready
        for kernel in ready.kernels:
            self.sources.setdefault(kernel.built.key, kernel.source)
        model = super().prepare(problem, candidate)
        return replace(model, stage_s={**model.stage_s, **ready.stage_s}) if isinstance(model, Prepared) else model

    def close(self) -> None:
        """Ends the compilers."""
        super().close()
        self._builder.close()


def run_job(row: Row, num_trials: int, folder: Path) -> tuple[Ended, float, BuildingModel]:
    """One job of the row, and its wall seconds from submission to verdict."""
    builder = Builder(folder / "job-cache", num_processes=places_here())
    evaluator = BuildingModel(parse_target("simulated:h200"), builder)
    with jobs_over(evaluator, winners=ShippedWinners(folder), data=folder / "data") as jobs:
        spec = JobSpec(
            workload=row.workload,
            target_id=jobs.target_id,
            objective=row.problem.objective,
            budget=Budget(trials=num_trials, seconds=3600),
            priors=PriorsChoice.NONE,
        )
        begin_s = time.monotonic()
        ended = jobs.end(jobs.begin(spec))
        return ended, time.monotonic() - begin_s, evaluator


def build_alone(sources: Sequence[str], arch: str, folder: Path) -> float:
    """Wall seconds of the builds from an empty cache."""
    num_places = places_here()
    with closing(Builder(folder / "alone-cache", num_processes=num_places)) as builder:
        builder.build('extern "C" __global__ void k(float* x) { x[0] = 0.0f; }', arch)  # the process starts
        begin_s = time.monotonic()
        with ThreadPoolExecutor(num_places) as threads:
            list(threads.map(lambda source: builder.build(source, arch), sources))
        return time.monotonic() - begin_s


def measure_row(row: Row, num_trials: int) -> dict[str, Any]:
    """A row of the report."""
    with tempfile.TemporaryDirectory() as scratch:
        ended, job_s, evaluator = run_job(row, num_trials, Path(scratch))
        builds_s = build_alone(list(evaluator.sources.values()), evaluator.target.gpu.arch, Path(scratch))
    return check_row(
        "job_over_its_builds_s",
        job_s - builds_s,
        round(SHARE * builds_s + SECONDS, 3),
        row=row.name,
        job_s=round(job_s, 2),
        builds_s=round(builds_s, 2),
        num_builds=len(evaluator.sources),
        trials=ended.job.num_trials,
        search_s=round(ended.job.search_s, 2),
        load=[round(load, 2) for load in os.getloadavg()],
    )


def main() -> None:
    """Measures the rows and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--row", action="append", help="a row's name, a pair or m16")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/search.json"))
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:NUM_CORES]
    os.sched_setaffinity(0, cores)
    watch, rows = Watch(), list[dict[str, Any]]()
    for row in choose_rows(names=arguments.row or DEFAULT_ROWS):
        rows.append(measure_row(row, arguments.trials))
        print(f"{watch.seconds} s: {rows[-1]}", flush=True)
        write_report(arguments.out, rows, {**NO_GPU, "num_cores": len(cores)})


if __name__ == "__main__":
    main()
