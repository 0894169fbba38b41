"""Searches the rows of `benchmarks.common.rows` by jobs of the service: winners and results.

python -m benchmarks.pairs.search [--suite decode-plain] [--row m16] [--trials 100] [--priors none] [--force]

A row is a job, with the service's searcher, build pool, finals and verdict. The best schedules of each job go to
tuner/winners/<gpu>.json, which ships with the program, and its finals to benchmarks/results/<gpu>/pairs.json. Both are
written row by row. A row that already has that many trials by this commit and kernel is skipped. An interrupted job
continues from its recorded trials: build/bench-jobs keeps the jobs, by commit. So a search may be spread over several
runs.

A search starts with the existing winners, and with the results of the jobs before it. With few trials, it measures
little else, so it updates the figures. `--priors none` is a search without priors, which keeps the existing winners.
`--regime burst` searches rows under sustained load in a tenth of the time; such jobs give winners but no results.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.common.jobs import Ended, Jobs, open_jobs, run_jobs
from benchmarks.common.program import Watch, parser_of
from benchmarks.common.report import machine_of, results_file
from benchmarks.common.rows import SUITES, Row, choose_rows
from benchmarks.common.winners import Winners
from benchmarks.pairs.results import Results, row_of
from tuner.core.problem.objective import Regime
from tuner.core.trial.job import Budget, JobSpec, PriorsChoice
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER

#: Default limit of a job's search, seconds: more than any budget of trials needs.
SECONDS_PER_JOB = 4 * 3600.0
#: So small that the chosen kernel is the fastest one: the energies are only recorded.
_ANY_ENERGY = 0.001
#: Stages of a trial that need no card.
BUILD_STAGES = ("verify", "render", "build")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How rows are searched."""

    trials: int = 100
    seconds_per_job: float = SECONDS_PER_JOB
    seed: int = 0
    priors: PriorsChoice = PriorsChoice.NEAREST
    #: The regime for all rows; None for each row's own.
    regime: Regime | None = None
    #: Whether a row that already has that many trials is searched again.
    force: bool = False
    #: Whether the finalists' energy is measured, too, under continuous load.
    energy: bool = False
    #: Seconds after which no row is started.
    limit_s: float = math.inf

    def spec(self, row: Row, target_id: str) -> JobSpec:
        """The job of a row."""
        objective = row.problem.objective
        return JobSpec(
            workload=row.workload,
            target_id=target_id,
            objective=objective if self.regime is None else replace(objective, regime=self.regime),
            budget=Budget(trials=self.trials, seconds=self.seconds_per_job),
            seed=self.seed,
            priors=self.priors,
            energy_within_percent=_ANY_ENERGY if self.energy else None,
        )


def search_rows(
    jobs: Jobs, rows: Sequence[Row], winners: Winners, results: Results, options: Options
) -> dict[str, str]:
    """Searches each row and keeps the results; returns the names of those that failed, with their reasons."""

    def keep(row: Row, ended: Ended) -> None:
        winners.put(row.name, row.workload, ended)
        if ended.job.spec.objective == row.problem.objective:
            results.put(row.name, row_of(row, ended))
        print(describe(row, ended), flush=True)

    specs = [(row, options.spec(row, jobs.target_id)) for row in rows]
    failures = run_jobs(jobs, specs, keep, seconds=options.limit_s, anew=options.force)
    for name, reason in failures.items():
        results.fail(name, reason)
    return failures


def describe(row: Row, ended: Ended) -> str:
    """One line: wall time, seconds of the card's trials and of all builds, and the best finalist of each kind."""
    job, stages = ended.job, [stage for trial in ended.trials for stage in trial.outcome.stage_s.items()]
    builds_s = sum(seconds for stage, seconds in stages if stage in BUILD_STAGES)
    card_s = sum(seconds for stage, seconds in stages if stage not in BUILD_STAGES and "." not in stage)
    best = {one.candidate.plan_kind: one for one in sorted(ended.best.finals, key=lambda one: one.speedup or 0.0)}
    kinds = "  ".join(f"{kind} {one.time_us:.2f}" for kind, one in best.items() if one.time_us)
    counts = f"{job.num_measured} + {job.num_rejected} rejected + {job.num_failed} failed"
    wall_s = (job.finished_at or 0.0) - (job.started_at or 0.0)
    took = f"{wall_s:.1f} s, {job.search_s:.1f} s of it search (card {card_s:.1f} s, all builds {builds_s:.1f} s)"
    return f"{row.name}: {took}; {counts}; {ended.best.winner}; us: {kinds}"


def read_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = parser_of(__doc__, "row", "rounds", "gpu", "data", "out", "seconds", trials=Options.trials, winners=FOLDER)
    parser.add_argument("--suite", action="append", default=[], choices=list(SUITES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--priors", type=PriorsChoice, choices=list(PriorsChoice), default=Options.priors)
    parser.add_argument("--force", action="store_true", help="search rows again even if they have as many trials")
    parser.add_argument("--regime", type=Regime, choices=list(Regime), help="regime that replaces that of the rows")
    parser.add_argument("--energy", action="store_true", help="also the finalists' energy, more than a second for each")
    parser.add_argument("--seconds-per-job", type=float, default=SECONDS_PER_JOB, help="of search, at most")
    return parser.parse_args()


def main() -> None:
    """Searches what the command line names."""
    arguments, watch = read_options(), Watch()
    options = Options(
        trials=arguments.trials,
        seconds_per_job=arguments.seconds_per_job,
        seed=arguments.seed,
        priors=arguments.priors,
        regime=arguments.regime,
        energy=arguments.energy,
        force=arguments.force,
        limit_s=arguments.seconds,
    )
    shipped = ShippedWinners(arguments.winners)
    with open_jobs(arguments.gpu, winners=shipped, num_rounds=arguments.rounds, data=arguments.data) as jobs:
        path = arguments.out or results_file(jobs.target_id, "pairs")
        results = Results(path, machine_of(jobs.environment))
        chosen = choose_rows(arguments.suite, arguments.row)
        rows = [row for row in chosen if options.force or not _has(results, row, options)]
        print(f"{len(rows)} of {len(chosen)} rows to search", flush=True)
        failures = search_rows(jobs, rows, Winners(shipped.path(jobs.target_id)), results, options)
    for suite, summary in results.summaries().items():
        print(suite, json.dumps(summary))
    print(f"{watch.seconds} s; winners in {shipped.path(jobs.target_id)}, results in {path}")
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


def _has(results: Results, row: Row, options: Options) -> bool:
    """Whether the file has the row for this commit and kernel, with at least the requested trials."""
    return results.num_trials(row.name, options.priors) >= options.trials


if __name__ == "__main__":
    main()
