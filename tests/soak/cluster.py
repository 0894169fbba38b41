"""A cluster whose workers are killed at random loses no trial, counts none twice, and ends what it began.

python -m tests.soak.cluster [--size 200] [--seed 1]

Half of the workers are killed (-9) at random moments, and started again; one kill in ten is the scheduler's.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from tests.service.dispatch.clusters import Process, ended, scheduler_process, wait_for_cards, worker_process
from tests.soak.program import Program, Row, Step, main
from tests.support.builders import spec
from tuner.core.trial.job import JobState
from tuner.dispatch.cluster.join import join_as_server
from tuner.service import Service
from tuner.store import Store

#: Kills of one job.
STEP = 4
NUM_TRIALS = 60
NUM_WORKERS = 2
#: Longest that a job may take beside its kills, seconds.
LIMIT_S = 300.0


def work(step: Step) -> list[Row]:
    """One job."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = _try_job(Path(folder), random.Random(step.seed), step.count)
    return [{"seed": step.seed, "kills": step.count, "wrong": wrong}]


def _try_job(folder: Path, chance: random.Random, num_kills: int) -> str:
    """What was wrong with it; empty where nothing was."""
    log = folder / "log"
    with ended([]) as processes:
        scheduler, address = scheduler_process(log)
        processes.append(scheduler)
        processes += [worker_process(address, log, f"w{number}") for number in range(NUM_WORKERS)]
        service = Service(Store.open(folder / "data"), dispatcher := join_as_server(address, None, insecure=False))
        service.start()
        try:
            wait_for_cards(dispatcher, NUM_WORKERS)
            job, _ = service.submit(spec(64, trials=NUM_TRIALS, seconds=3600))
            for _ in range(num_kills):
                time.sleep(chance.uniform(0.2, 2.0))
                _kill_one(processes, chance, address, log)
            end = time.monotonic() + LIMIT_S
            while not service.job(job.id).state.is_final:
                if time.monotonic() > end:
                    return f"it did not end: {service.job(job.id)}"
                time.sleep(0.2)
            return _wrong(service, job.id)
        finally:
            service.close()


def _kill_one(processes: list[Process], chance: random.Random, address: str, log: Path) -> None:
    """Kills a worker or, seldom, the scheduler, and starts it again."""
    if chance.random() < 0.1:
        processes[0].end()
        processes[0], _ = scheduler_process(log, int(address.rpartition(":")[2]))
        return
    number = chance.randrange(NUM_WORKERS)
    processes[1 + number].end()
    processes[1 + number] = worker_process(address, log, f"w{number}")


def _wrong(service: Service, job_id: str) -> str:
    job, trials = service.job(job_id), service.trials(job_id, limit=500).items
    if job.state is not JobState.SUCCEEDED:
        return f"it {job.state}: {job.reason}"
    if [trial.number for trial in trials] != list(range(NUM_TRIALS)):
        return f"{len(trials)} trials are numbered {[trial.number for trial in trials]}"
    if len({trial.candidate for trial in trials}) != NUM_TRIALS:
        return "a candidate was tried again"
    return ""


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """No job lost anything."""
    bad = [row for row in rows if row["wrong"]]
    whole = {"jobs": len(rows), "kills": sum(row["kills"] for row in rows), "jobs_that_lost": len(bad)}
    return [whole, *bad], [f"seed {row['seed']}: {row['wrong']}" for row in bad]


PROGRAM = Program(name="cluster", unit="kills", size=100 * STEP, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
