"""What a second card of the same model brings one job: the same job on one card, on all cards of this machine, and on
one again.

python -m benchmarks.search.shared [--gpu auto] [--row NAME ...] [--trials 300] [--seconds 300] [--out FILE]

The file is written after each job. What it has of this commit and machine stays, row by row, so a run may be cut, and
go on. `speedup` is the seconds of one card, those of its faster job, over those of all. `by_helpers` says how many
trials another card than the job's own measured. `loss` is by how much the kernel that all cards found is slower than
that of the job before, from the rounds of one finals. Each job begins without cubins and without priors.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import Ended, Jobs, jobs_over
from benchmarks.common.report import machine_of, results_file, rows_of_this_build, write_report
from benchmarks.common.rows import Row, choose_rows
from benchmarks.common.workbench import Watch
from benchmarks.search.bench import BUILDS
from benchmarks.search.timed import LentEvaluator
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.trial.evaluator import Evaluator
from tuner.core.trial.job import Budget, JobSpec, PriorsChoice
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import Best
from tuner.core.trial.stats import median, paired_ratios
from tuner.dispatch.factory import make_evaluators
from tuner.search import SearchProcesses
from tuner.service.runner.searching import Search
from tuner.winners import ShippedWinners

ROWS = ("decode-swiglu/llama3-8b/m16",)
#: A job in front of all, and its trials.
WARM_UP, NUM_WARM_UP = "decode-plain/llama3-8b/m16", 8
#: Of a row: on one card, on all of them, and on one again.
NUM_JOBS = 3
#: Simulated cards, where no real ones are asked for.
NUM_SIMULATED = 2
#: Of search, more than any job here needs.
SEARCH_LIMIT_S = 300.0


def run_job(row: Row, trials: int, jobs: Jobs) -> Ended:
    """One job without priors.

    Raises:
        JobError: it has not succeeded.
    """
    spec = JobSpec(
        workload=row.workload,
        target_id=jobs.target_id,
        objective=row.problem.objective,
        budget=Budget(trials=trials, seconds=SEARCH_LIMIT_S),
        priors=PriorsChoice.NONE,
    )
    return jobs.end(jobs.begin(spec, anew=True))


def fastest_of(best: Best) -> Candidate:
    """The fastest finalist of ours."""
    ours = [row for row in best.finals if row.time_us and row.candidate.plan_kind.is_ours]
    return min(ours, key=lambda row: row.time_us or 0.0).candidate


def contest(row: Row, jobs: Jobs, one: Candidate, other: Candidate) -> float | None:
    """By how much `other` is slower than `one`, relative; None where one of them failed."""
    if one == other:
        return 0.0
    num_rounds = FinalsProcedure().rounds_in(row.problem.objective.regime)
    lane = jobs.dispatcher.lane(jobs.target_id)
    _, one_us, other_us = lane.finals(row.problem, (LIBRARY, one, other), num_rounds).result().times_us
    return median(paired_ratios(other_us, one_us)) - 1 if one_us and other_us else None


def figures(ended: Ended, num_cards: int) -> dict[str, Any]:
    """Of one job."""
    job = ended.job
    outcomes = [trial.outcome for trial in ended.trials if isinstance(trial.outcome, Measured)]
    return {
        "cards": num_cards,
        "trials": job.num_trials,
        "job_s": round((job.finished_at or 0.0) - job.created_at, 2),
        "search_s": round(job.search_s, 2),
        "by_helpers": sum(any(metric.tag == "by_helper" for metric in one.metrics) for one in outcomes),
        "verdict": str(ended.best.verdict),
    }


def rows_of(
    row: Row,
    trials: int,
    cards: Sequence[Evaluator],
    threads: Sequence[ThreadPoolExecutor],
    folder: Path,
    search: Search,
) -> Iterator[list[dict[str, Any]]]:
    """The job on the first card alone, on all of them, and on the first again: what the program keeps from job to job
    helps the later ones. After each job what there is so far. `threads` are one for each card.

    Raises:
        JobError: one has not succeeded.
    """
    found, kernels = list[dict[str, Any]](), list[Candidate]()
    for turn, used in enumerate((cards[:1], cards, cards[:1])):
        for file in (folder / BUILDS).glob("*"):
            file.unlink()
        lent = [LentEvaluator(card, threads[i]) for i, card in enumerate(used)]
        data = folder / f"{row.name.replace('/', '-')} {trials} {turn}"
        with jobs_over(*lent, winners=ShippedWinners(), data=data, search=search) as jobs:
            ended = run_job(row, trials, jobs)
            kernels.append(fastest_of(ended.best))
            found.append({"row": row.name, "budget": trials, **figures(ended, len(used))})
            if len(kernels) == 2:
                found[-1]["loss"] = contest(row, jobs, *kernels)
        yield with_speedup(found)


def with_speedup(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs of one row so far; where all are there, that on all cards says how much shorter it was than the faster
    one on one card."""
    if len(found) < NUM_JOBS:
        return list(found)
    alone, together, again = found
    least_s = min(alone["job_s"], again["job_s"])
    return [alone, together | {"speedup": round(least_s / together["job_s"], 3)}, again]


def whole_rows(found: Iterable[dict[str, Any]], trials: int) -> dict[str, list[dict[str, Any]]]:
    """By name, the rows of which an earlier run made all jobs, with so many trials: what is compared comes from one
    run, so of the others nothing stays."""
    by_name = defaultdict[str, list[dict[str, Any]]](list)
    for one in found:
        by_name[one["row"]].append(one)
    return {
        name: jobs
        for name, jobs in by_name.items()
        if len(jobs) == NUM_JOBS and all(job.get("budget") == trials for job in jobs)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the jobs, and writes the results file after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--row", action="append", help="default: a SwiGLU pair of 16 rows")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no row after that")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    watch = Watch()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        cards, why = make_evaluators(options.gpu, build_cache=folder / BUILDS, num_simulated=NUM_SIMULATED)
        print(why, flush=True)
        processes = SearchProcesses(1)
        threads = [ThreadPoolExecutor(1) for _ in cards]
        for ending in (processes.close, *(card.close for card in cards), *(thread.shutdown for thread in threads)):
            stack.callback(ending)
        environment = cards[0].environment()
        machine = machine_of(environment) | {"simulated": environment.simulated}
        path = options.out or results_file(cards[0].target.id, "shared")
        found = whole_rows(rows_of_this_build(path, machine), options.trials)
        wanted = [row for row in choose_rows(names=options.row or ROWS) if row.name not in found]
        if wanted:  # so that no job has the starts of processes
            deque(rows_of(choose_rows(names=[WARM_UP])[0], NUM_WARM_UP, cards, threads, folder, processes.search), 0)
        print(f"{watch.seconds} s: the cards are open", flush=True)
        for row in wanted:
            if watch.seconds > options.seconds:
                print(f"{row.name} is left: {options.seconds:g} s are over")
                continue
            for jobs in rows_of(row, options.trials, cards, threads, folder, processes.search):
                found[row.name] = jobs
                write_report(path, [job for of_row in found.values() for job in of_row], machine)
                print(f"{watch.seconds} s: {jobs}", flush=True)


if __name__ == "__main__":
    main()
