"""The overhead of a cluster per trial, and its gain in throughput: real processes on the loopback interface with
mutual TLS.

python -m benchmarks.cpu.cluster [--trials 60] [--out benchmarks/results/cpu/service.json]

Takes about four minutes. It needs an otherwise idle machine. Rows of other programs in the file are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import all_trials
from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, at_least_row, check_row, merge_report
from benchmarks.cpu.best import RESULTS, TARGET
from tuner.core.trial.job import Budget, JobSpec, JobState, Objective, PriorsChoice
from tuner.dispatch.cluster.certificates import create
from tuner.dispatch.cluster.join import join_as_server
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search import SearchProcesses
from tuner.service import Service
from tuner.store import Store

#: Seconds that each trial of a sleeping evaluator takes.
SLEEP_S = 0.5
#: Number of first trials of a job that are not counted, since they wait while the searcher analyses the space.
NUM_FIRST = 10


@contextmanager
def cluster(num_workers: int, cards_each: int, latency_s: float) -> Iterator[Service]:
    """A service over workers in separate processes, all of whose cards have joined."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = Path(name)
        tls = create(folder / "tls", ["member"], 1)[0]
        scheduler = _start("scheduler", "--port", "0", "--tls", str(tls))
        ends.callback(_end, scheduler)
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        options = (
            "--scheduler", address, "--tls", str(tls), "--gpu", TARGET, "--count", str(cards_each),
            "--listen", "127.0.0.1", "--cache", str(folder / "builds"), "--places", "1",
        )  # fmt: skip
        for number in range(num_workers):
            latency = {"TUNER_SIMULATED_LATENCY_S": str(latency_s)}
            ends.callback(_end, _start("worker", *options, "--name", f"w{number}", **latency))
        dispatcher = join_as_server(address, tls, insecure=False)
        while dispatcher.num_workers(TARGET) < num_workers * cards_each:
            time.sleep(0.1)
        searches = SearchProcesses(os.cpu_count() or 1)  # as in `tuner serve`
        ends.callback(searches.close)
        service = Service(Store.open(folder / "data"), dispatcher, search=searches.search)
        service.start()
        ends.callback(service.close)
        yield service


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _start(*command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner.cli", *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def submit(service: Service, d_hiddens: list[int], num_trials: int, target: str = TARGET) -> list[str]:
    """Submits a job without priors for each hidden width, with 16 rows."""
    jobs = []
    for d_hidden in d_hiddens:
        workload = ffn_pair(m=16, d_in=4096, d_hidden=d_hidden, d_out=4096)
        budget = Budget(trials=num_trials, seconds=3600)
        asked: dict[str, Any] = {"workload": workload, "target_id": target, "objective": Objective(), "budget": budget}
        jobs.append(service.submit(JobSpec(**asked, priors=PriorsChoice.NONE))[0].id)
    return jobs


def finish_times(service: Service, jobs: list[str], num_trials: int) -> list[list[float]]:
    """The times at which each trial of each job was recorded, seconds; the jobs run concurrently."""
    while any(service.job(job).num_trials < num_trials for job in jobs):
        if failed := [job for job in jobs if service.job(job).state is JobState.FAILED]:
            raise SystemExit(f"{failed[0]} failed: {service.job(failed[0]).reason}")
        time.sleep(0.2)
    return [sorted(trial.finished_at for trial in all_trials(service, job)) for job in jobs]


def rate(finished: list[list[float]]) -> float:
    """Trials per second of all jobs, excluding first trials and the time after any job has ended."""
    begin = max(times[NUM_FIRST - 1] for times in finished)
    end = min(times[-1] for times in finished)
    if end <= begin:
        raise SystemExit("a job ended before another had begun: give more --trials")
    return sum(begin < at <= end for times in finished for at in times) / (end - begin)


def measure(num_trials: int) -> list[dict[str, Any]]:
    """The rows of rates and overheads."""
    rows = []
    with cluster(1, 1, SLEEP_S) as service:
        (times,) = finish_times(service, submit(service, [14336], num_trials), num_trials)
    one = rate([times])
    raw = {"trials": len(times) - NUM_FIRST, "cores": os.cpu_count()}
    check = f"overhead of a trial on a cluster, beside {SLEEP_S:g} s of evaluation, seconds"
    rows.append(check_row(check, 1 / one - SLEEP_S, 0.02, **raw, load_average=os.getloadavg()[0]))
    with cluster(2, 1, SLEEP_S) as service:
        two = rate(finish_times(service, submit(service, [14336, 11008], num_trials), num_trials))
    check = "trials a second of two sleeping evaluators over those of one"
    rows.append(at_least_row(check, two / one, 1.9, **raw, load_average=os.getloadavg()[0]))
    with cluster(2, 16, 0.0) as service:
        jobs = submit(service, [8192 + 128 * n for n in range(32)], num_trials)
        many = rate(finish_times(service, jobs, num_trials))
    check = "trials a second of 32 simulated GPUs at 16 rows"
    rows.append(at_least_row(check, many, 15.0, **raw, load_average=os.getloadavg()[0]))
    return rows


def main() -> None:
    """Measures and writes its rows into the results file."""
    arguments = parser_of(__doc__, "trials", out=RESULTS).parse_args()
    merge_report(arguments.out, measure(arguments.trials), NO_GPU)


if __name__ == "__main__":
    main()
