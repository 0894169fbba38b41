"""Searches chains by jobs of the service, against the library: benchmarks/results/<gpu>/chains.json.

python -m benchmarks.chains.search [--row llama3-8b/m16] [--trials 60] [--missing] [--seconds 480] [--winners FOLDER]

A row is a job, with the service's searcher, build pool, finals and verdict. Its library is the faster of the vendor's
and torch.compile, if PyTorch is installed. The best fused launch is traced: its row has the figures of the boundaries.
Rows are written one by one. Existing rows of the same commit and kernel are kept; `--missing` skips them.
After `--seconds` no row is started. A job's best schedules of each plan kind are written to tuner/winners/<gpu>.json,
from which the next search reads them.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.chains.boundaries import boundaries_of
from benchmarks.chains.results import Results
from benchmarks.chains.rows import ChainRow, choose_rows
from benchmarks.common.finals import best_of_kinds, figures_of
from benchmarks.common.jobs import Ended, Jobs, open_jobs, run_jobs
from benchmarks.common.program import parser_of
from benchmarks.common.report import machine_of, results_file
from benchmarks.common.winners import Winners
from tuner.core.trial.job import Budget, JobSpec
from tuner.core.trial.records import Inspection, InspectionKind, InspectionState
from tuner.core.trial.reports.inspection import Trace
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER

#: Maximum seconds of a job's search.
SECONDS_PER_JOB = 3600.0
#: Maximum wait for a finalist's trace, seconds.
TRACE_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of all rows' jobs."""

    trials: int
    #: Whether the library is the faster of the vendor's and torch.compile.
    torch_compile: bool


def spec_of(row: ChainRow, target_id: str, options: Options) -> JobSpec:
    """The job of a row."""
    return JobSpec(
        workload=row.workload,
        target_id=target_id,
        objective=row.problem.objective,
        budget=Budget(trials=options.trials, seconds=SECONDS_PER_JOB),
        seed=0,
        torch_compile=options.torch_compile,
    )


def search_rows(
    jobs: Jobs, rows: Sequence[ChainRow], results: Results, winners: Winners, options: Options, seconds: float
) -> dict[str, str]:
    """Searches each row, and writes it and its winners; returns the names of those that failed, with their reasons."""

    def keep(row: ChainRow, ended: Ended) -> None:
        winners.put(f"chains/{row.name}", row.workload, ended)
        figures = row_of(row, ended)
        results.put(row, figures)
        said = {name: figures.get(name) for name in ("winner", "verdict_speedup", "over_reference", "trials", "wall_s")}
        print(row.name, json.dumps(figures["kind_us"]), json.dumps(said), flush=True)

    specs = [(row, spec_of(row, jobs.target_id, options)) for row in rows]
    return run_jobs(jobs, specs, keep, seconds=seconds)


def row_of(row: ChainRow, ended: Ended) -> dict[str, Any]:
    """The row's figures, all from the job's finals.

    Raises:
        TunerError: the library was not timed, or no fused launch was.
    """
    return {"chain": row.chain, "m": row.m, **figures_of(ended)}


def add_boundaries(jobs: Jobs, rows: Sequence[ChainRow], results: Results, options: Options) -> None:
    """Adds the time that the best fused launches spend at each boundary between ops, from their traces."""
    for row in rows:
        found = results.get(row)
        if found is None:
            continue
        ended = jobs.end(jobs.begin(spec_of(row, jobs.target_id, options)))
        fused = [one for kind, one in best_of_kinds(ended).items() if kind.is_fused]
        best = min(fused, key=lambda one: one.time_us or math.inf)
        asked = trace_of(jobs, ended.job.id, best.trial_number)
        if isinstance(asked.result, Trace) and not asked.result.reason:
            boundaries = boundaries_of(asked.result)
            results.put(row, found | {"boundaries": boundaries})
            print(row.name, json.dumps(boundaries), flush=True)
        else:
            why = asked.result.reason if isinstance(asked.result, Trace) else asked.reason or asked.state
            print(f"{row.name}: its best fused launch has no trace: {why}", flush=True)


def trace_of(jobs: Jobs, job_id: str, number: int) -> Inspection:
    """The trace of a trial, if it arrives in time."""
    end = time.monotonic() + TRACE_S
    asked, _ = jobs.service.ask_inspection(job_id, number, InspectionKind.TRACE)
    while asked.state is InspectionState.PENDING and time.monotonic() < end:
        time.sleep(_POLL_S)
        asked = jobs.service.inspection(job_id, number, InspectionKind.TRACE)
    return asked


def main() -> None:
    """Searches the rows named on the command line."""
    parser = parser_of(__doc__, "row", "seconds", "rounds", "gpu", "data", "out", trials=60, winners=FOLDER)
    parser.add_argument("--no-torch-compile", action="store_true", help="only the vendor's library, which is quicker")
    parser.add_argument("--missing", action="store_true", help="only rows that are missing for this commit and kernel")
    arguments = parser.parse_args()
    shipped = ShippedWinners(arguments.winners)
    with open_jobs(arguments.gpu, winners=shipped, num_rounds=arguments.rounds, data=arguments.data) as jobs:
        results = Results(arguments.out or results_file(jobs.target_id, "chains"), machine_of(jobs.environment))
        chosen = choose_rows(arguments.row)
        rows = [row for row in chosen if not arguments.missing or results.get(row) is None]
        winners = Winners(shipped.path(jobs.target_id))
        options = Options(trials=arguments.trials, torch_compile=not arguments.no_torch_compile)
        failures = search_rows(jobs, rows, results, winners, options, arguments.seconds)
        add_boundaries(jobs, rows, results, options)
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
