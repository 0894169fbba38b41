"""How long a job of 100,000 trials takes to be shown, and how long others wait while garbage is collected.

python -m benchmarks.cpu.large_job [--trials 100000] [--asks 50] [--out benchmarks/results/cpu/large_job.json]
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.common.report import NO_GPU, check_row, write_report
from benchmarks.cpu.best import TARGET, ask_paths, cpu_s, percentile, serving
from tuner.core.insight.forecast_quality import forecast_metric
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.job import Budget, JobSpec, JobState, Objective, Trial
from tuner.core.trial.outcome import Measured, Outcome, Rejected, Stage
from tuner.core.trial.samples import Round
from tuner.ops.gemm.pairs import ffn_pair
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials

#: What a page may take, seconds, of one in a hundred.
BAR_S = 0.100
#: Rounds of a trial: two kilobytes of samples.
NUM_ROUNDS = 85
#: Different schedules among the trials.
NUM_SCHEDULES = 100


def fill(directory: Path, num_trials: int) -> str:
    """One job of this many trials; its id."""
    chance = random.Random(1)
    workload = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
    schedules = list(islice(Space(workload, CATALOGUE["h200"]), NUM_SCHEDULES))
    rounds = tuple(Round(time_us=60.0, library_us=70.0) for _ in range(NUM_ROUNDS))
    store, budget = Store.open(directory), Budget(trials=num_trials, seconds=60)
    spec = JobSpec(workload=workload, target_id=TARGET, objective=Objective(), budget=budget)
    with store.write() as session:
        job = jobs.insert(session, spec, 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
    for begin in range(0, num_trials, 1000):
        with store.write() as session:
            for number in range(begin, min(begin + 1000, num_trials)):
                kind = PlanKind.LIBRARY if number == 0 else chance.choice(list(PlanKind)[1:])
                time_us = chance.uniform(55, 90)
                outcome: Outcome = Measured(
                    time_us=time_us, library_us=70.0, speedup=70 / time_us, spread=0.01, rounds=rounds, rel_error=0.0,
                    metrics=(forecast_metric(time_us * chance.uniform(0.9, 1.1)),),
                )  # fmt: skip
                if chance.random() < 0.1:
                    outcome = Rejected(stage=Stage.VERIFY, reason="it needs too much shared memory")
                candidate = Candidate(plan_kind=kind, schedule=chance.choice(schedules) if kind.is_ours else None)
                one = Trial(
                    number=number, num_known=number, candidate=candidate, outcome=outcome, started_at=2.0 + number / 10,
                    finished_at=2.1 + number / 10,
                )  # fmt: skip
                trials.record(session, job.id, one, 0.1)
    with store.write() as session:
        jobs.set_state(session, job.id, JobState.CANCELLED, 3.0)
    store.close()
    return job.id


def show(directory: Path, job_id: str, num_trials: int, num_asks: int) -> list[dict[str, Any]]:
    """A row for each of the things that are asked of the job."""
    asked = {
        "the job": f"/jobs/{job_id}",
        "its page": f"/ui/jobs/{job_id}",
        "its page, by time": f"/ui/jobs/{job_id}?sort=time",
        "100 trials, measured, by speed-up": f"/jobs/{job_id}/trials?outcome=measured&sort=speedup",
        "100 trials of a kind, by time": f"/jobs/{job_id}/trials?plan_kind=fused&sort=time",
        "the front page": "/",
    }
    rows = []
    with serving(directory) as (url, pid):
        for what, path in asked.items():
            ask_paths(url, [path] * 3)
            before_s = cpu_s(pid)
            taken = ask_paths(url, [path] * num_asks)
            raw = {
                "trials": num_trials,
                "asks": num_asks,
                "median_s": round(percentile(taken, 0.5), 6),
                "server_cpu_s": round((cpu_s(pid) - before_s) / num_asks, 6),
                "load_average": os.getloadavg()[0],
            }
            rows.append(check_row(f"p99 of {what}, seconds", percentile(taken, 0.99), BAR_S, **raw))
    return rows


def collect(directory: Path, num_trials: int) -> dict[str, Any]:
    """A row: the longest that another writer waits while the job's samples are removed."""
    store, waits, is_over = Store.open(directory), list[float](), threading.Event()

    def write() -> None:
        while not is_over.is_set():
            begin_s = time.perf_counter()
            with store.write():
                waits.append(time.perf_counter() - begin_s)
            time.sleep(0.005)

    writer = threading.Thread(target=write)
    writer.start()
    begin_s = time.perf_counter()
    freed = store.collect_garbage(0)
    whole_s = time.perf_counter() - begin_s
    is_over.set()
    writer.join()
    store.close()
    raw = {
        "trials": num_trials,
        "freed_bytes": freed.freed_bytes,
        "collection_s": round(whole_s, 3),
        "writes": len(waits),
    }
    return check_row("longest wait for the writer during a collection, seconds", max(waits), BAR_S, **raw)


def main() -> None:
    """Measures and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--asks", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/large_job.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        job_id = fill(data, arguments.trials)
        rows = show(data, job_id, arguments.trials, arguments.asks)
        rows.append(collect(data, arguments.trials))
    write_report(arguments.out, rows, NO_GPU)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
