"""What a cluster adds to a trial, and what it brings: real processes on the loopback interface over mutual TLS.

python -m benchmarks.cpu.cluster [--out benchmarks/results/cpu/service.json]

Takes about three minutes. It wants the machine for itself. Rows of other programs in the file stay.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common.report import NO_GPU, at_least_row, check_row, merge_report
from tuner.core.problem.workload import ffn_pair
from tuner.core.trial.job import Budget, JobSpec, Objective
from tuner.dispatch.cluster.certificates import create
from tuner.dispatch.cluster.join import join_as_server
from tuner.search import SearchProcesses
from tuner.service import Service
from tuner.service.paging import MAX_PAGE
from tuner.store import Store

TARGET = "simulated:h200"
#: What a trial of a sleeping evaluator takes, seconds.
SLEEP_S = 0.5
#: Trials of a job that are not counted: its first ones wait for the searcher, which looks at the space.
NUM_FIRST = 10


@contextmanager
def cluster(num_workers: int, cards_each: int, latency_s: float) -> Iterator[Service]:
    """A service over workers in processes of their own, all of whose cards are there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = create(folder / "tls", ["member"], 1)[0]
        processes = []
        try:
            processes.append(_start("scheduler", "--port", "0", "--tls", str(tls)))
            assert processes[0].stdout is not None
            address = processes[0].stdout.readline().strip()
            for number in range(num_workers):
                processes.append(_start(
                    "worker", "--scheduler", address, "--tls", str(tls), "--gpu", TARGET, "--count", str(cards_each),
                    "--name", f"w{number}", "--listen", "127.0.0.1", "--cache", str(folder / "builds"), "--places", "1",
                    TUNER_SIMULATED_LATENCY_S=str(latency_s),
                ))  # fmt: skip
            dispatcher = join_as_server(address, tls, insecure=False)
            while dispatcher.num_workers(TARGET) < num_workers * cards_each:
                time.sleep(0.1)
            searches = SearchProcesses(os.cpu_count() or 1)  # as `tuner serve` has them
            service = Service(Store.open(folder / "data"), dispatcher, search=searches.search)
            service.start()
            yield service
            service.close()
            searches.close()
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def _start(*command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner.cli", *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def finish_times(service: Service, d_hiddens: list[int], num_trials: int) -> list[list[float]]:
    """When each trial of each job was recorded, seconds; the jobs run side by side."""
    jobs = []
    for d_hidden in d_hiddens:
        workload = ffn_pair(m=16, d_in=4096, d_hidden=d_hidden, d_out=4096)
        budget = Budget(trials=num_trials, seconds=3600)
        spec = JobSpec(workload=workload, target_id=TARGET, objective=Objective(), budget=budget)
        jobs.append(service.submit(spec)[0].id)
    while any(service.job(job).num_trials < num_trials for job in jobs):
        time.sleep(0.2)
    return [sorted(trial.finished_at for trial in service.trials(job, limit=MAX_PAGE).items) for job in jobs]


def rate(finished: list[list[float]]) -> float:
    """Trials a second of all jobs, while none is at its first trials and none has ended."""
    begin = max(times[NUM_FIRST - 1] for times in finished)
    end = min(times[-1] for times in finished)
    if end <= begin:
        raise SystemExit("a job ended before another had begun: give more --trials")
    return sum(begin < at <= end for times in finished for at in times) / (end - begin)


def measure(num_trials: int) -> list[dict[str, Any]]:
    """The rows."""
    rows = []
    with cluster(1, 1, SLEEP_S) as service:
        (times,) = finish_times(service, [14336], num_trials)
    one = rate([times])
    raw = {"trials": len(times) - NUM_FIRST, "cores": os.cpu_count()}
    check = f"overhead of a trial on a cluster, beside {SLEEP_S:g} s of evaluation, seconds"
    rows.append(check_row(check, 1 / one - SLEEP_S, 0.02, **raw, load_average=os.getloadavg()[0]))
    with cluster(2, 1, SLEEP_S) as service:
        two = rate(finish_times(service, [14336, 11008], num_trials))
    check = "trials a second of two sleeping evaluators over those of one"
    rows.append(at_least_row(check, two / one, 1.9, **raw, load_average=os.getloadavg()[0]))
    with cluster(2, 16, 0.0) as service:
        many = rate(finish_times(service, [8192 + 128 * n for n in range(32)], num_trials))
    check = "trials a second of 32 simulated GPUs at 16 rows"
    rows.append(at_least_row(check, many, 15.0, **raw, load_average=os.getloadavg()[0]))
    return rows


def main() -> None:
    """Measures and writes its rows into the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/service.json"))
    arguments = parser.parse_args()
    rows = measure(arguments.trials)
    merge_report(arguments.out, rows, NO_GPU)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
