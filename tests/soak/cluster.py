"""A cluster whose server, scheduler, workers and their children are killed (-9) at random loses no trial, counts none
twice, and ends every job.

python -m tests.soak.cluster [--size 500] [--seed 1]

Server and scheduler are real `tuner` processes. A child process (`member.py`) holds a worker's GPU. A kill may hit a
process that is starting.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.soak import member
from tests.soak.member import children
from tests.soak.program import Program, Row, Step, main
from tests.support.forked import Forked, command
from tests.support.serving import body
from tests.support.waiting import wait_until

#: Kills of one cluster.
STEP = 5
NUM_TRIALS = 60
NUM_WORKERS = 2
#: Duration of each trial, and of the finals, in a worker's child.
SECONDS = "0.1/0.0"
#: Maximum time for the jobs after the last kill, and for a killed server to respond again, seconds.
LIMIT_S = 300.0
VICTIMS = ("server", "scheduler", "worker", "child")
FINAL = ("succeeded", "failed", "cancelled")


class Cluster:
    """All the processes, and the means to kill them."""

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        ends: ExitStack,
        seconds: str = SECONDS,
        num_trials: int = NUM_TRIALS,
    ) -> None:
        """Starts the processes; `ends` kills those that remain. Jobs have `num_trials` trials, each held by a child for
        `seconds`."""
        self._folder, self._chance = folder, chance
        self._seconds, self._num_trials = seconds, num_trials
        self._scheduler = self._new_scheduler(0)
        ends.callback(lambda: self._scheduler.kill())
        self._address = self._scheduler.line()
        self._workers = [self._new_worker(number) for number in range(NUM_WORKERS)]
        ends.callback(self._kill_workers)
        self._server = self._new_server()
        ends.callback(lambda: self._server.kill())
        self._server.line()
        self._num_jobs = 0
        self.killed = Counter[str]()

    def _new_scheduler(self, port: int) -> Forked:
        return Forked(command, "scheduler", "--plain", "--port", str(port), log=self._folder / "log")

    def _new_worker(self, number: int) -> Forked:
        own = self._address, f"w{number}", str(self._folder / "builds"), self._seconds
        return Forked(member.main, *own, log=self._folder / "log", spawns=True)

    def _new_server(self) -> Forked:
        own = "serve", "--port", "0", "--data", str(self._folder / "data"), "--scheduler", self._address
        return Forked(command, *own, log=self._folder / "log", spawns=True, TUNER_LOG_LEVEL="error")

    def submit_where_idle(self) -> None:
        """Submits a job of a new problem for each idle GPU."""
        url = self._server.line()
        num_open = sum(state not in FINAL for (state,) in rows(self._folder, "select state from jobs"))
        # A server that has just started refuses jobs until a worker has joined.
        wait_until(lambda: bool(httpx.get(f"{url}/targets", timeout=60).raise_for_status().json()), LIMIT_S, 0.1)
        for _ in range(NUM_WORKERS - num_open):
            self._num_jobs += 1
            pair = body()["pair"] | {"d_hidden": 512 + 128 * self._num_jobs}
            asked = body(pair=pair, budget={"trials": self._num_trials, "seconds": 3600})
            httpx.post(f"{url}/jobs", json=asked, timeout=60).raise_for_status()

    def kill(self, victim: str) -> None:
        """Kills a process of the kind `victim` and restarts it at once. A worker restarts its own children."""
        number = self._chance.randrange(NUM_WORKERS)
        if victim == "child" and not self._kill_child(number):
            victim = "worker"  # a worker has no child if the server gives it no work
        self.killed[victim] += 1
        if victim == "server":
            self._server.kill()
            self._server = self._new_server()
        elif victim == "scheduler":
            self._scheduler.kill()
            self._scheduler = self._new_scheduler(int(self._address.rpartition(":")[2]))
        elif victim == "worker":
            self._workers[number].kill()
            self._workers[number] = self._new_worker(number)

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.kill()

    def _kill_child(self, number: int) -> bool:
        """Kills a child of a worker that holds its GPU or waits to, as soon as there is one; returns whether there was
        one."""
        end = time.monotonic() + LIMIT_S / 10
        while time.monotonic() < end:
            with suppress(OSError):
                if found := children(self._workers[number].pid):
                    os.kill(self._chance.choice(found), signal.SIGKILL)
                    return True
            time.sleep(0.1)
        return False

    def wait_until_all_ended(self) -> str:
        """Returns what went wrong; empty if all jobs have ended."""
        end = time.monotonic() + LIMIT_S
        while left := [row for row in rows(self._folder, "select id, state from jobs") if row[1] not in FINAL]:
            if time.monotonic() > end:
                return f"{left} did not end in {LIMIT_S:g} s"
            time.sleep(0.2)
        return ""


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """The rows of a database query, while its server runs."""
    return at_once(folder, query)[0]


def at_once(folder: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows of several queries from one snapshot of the database."""
    with closing(sqlite3.connect(folder / "data" / "tuner.db", timeout=60, isolation_level=None)) as database:
        database.execute("begin")
        return [database.execute(query).fetchall() for query in queries]


def recorded(folder: Path) -> dict[tuple[str, int], tuple[Any, ...]]:
    """The full record of every trial, by job and number."""
    return {row[:2]: row for row in rows(folder, "select * from trials order by job_id, number")}


def problem_of(folder: Path, num_trials: int = NUM_TRIALS) -> str:
    """What is inconsistent in a database whose jobs have `num_trials` trials each; empty if nothing is."""
    sums = "select job_id, number, outcome, plan_kind, schedule, length(samples) from trials order by job_id, number"
    jobs = "select id, state, reason, num_measured, num_rejected, num_failed, samples_bytes from jobs"
    events = "select job_id, json_extract(data, '$.number') from events where kind = 'trial' order by id"
    # Read from a single snapshot, since the server may continue recording.
    seen, all_trials, all_jobs = at_once(folder, events, sums, jobs)
    for job, state, reason, *counts, samples_bytes in all_jobs:
        trials = [row[1:] for row in all_trials if row[0] == job]
        by_outcome = Counter(row[1] for row in trials)
        if [row[0] for row in trials] != list(range(len(trials))):
            return f"{job} has trials {[row[0] for row in trials]}"
        if counts != [by_outcome[name] for name in ("measured", "rejected", "failed")]:
            return f"{job} counts {counts}, and has {dict(by_outcome)}"
        if samples_bytes != sum(row[4] or 0 for row in trials):
            return f"{job} counts {samples_bytes} bytes of samples, and has {sum(row[4] or 0 for row in trials)}"
        if sorted(number for one, number in seen if one == job) != list(range(len(trials))):
            return f"the events of {job} have a different number of trials than its {len(trials)}"
        if len({row[2:4] for row in trials}) != len(trials):
            return f"{job} tried a candidate twice"
        if state in FINAL and (state, len(trials)) != ("succeeded", num_trials):
            return f"{job} {state} with {len(trials)} trials: {reason}"
    return ""


def work(step: Step) -> list[Row]:
    """Runs one cluster."""
    chance, killed, wrong = random.Random(step.seed), Counter[str](), ""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = Path(name)
        cluster, kept = Cluster(folder, chance, ends), dict[tuple[str, int], tuple[Any, ...]]()
        for _ in range(step.count):
            cluster.submit_where_idle()
            time.sleep(chance.uniform(0.1, 1.5))
            cluster.kill(chance.choice(VICTIMS))
            now = recorded(folder)
            lost = [key for key, row in kept.items() if now.get(key) != row]
            wrong = wrong or (f"gone or changed: {lost}" if lost else "") or problem_of(folder)
            kept = now
        wrong = wrong or cluster.wait_until_all_ended() or problem_of(folder)
        killed, num_trials = cluster.killed, len(recorded(folder))
        if wrong and (log := folder / "log").exists():
            wrong += f"; {log.read_text()[-1000:]}"
    return [{"seed": step.seed, "trials": num_trials, **{one: killed[one] for one in VICTIMS}, "wrong": wrong}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no cluster lost anything, and that each kind of process was killed."""
    bad = [row for row in rows if row["wrong"]]
    sums = {name: sum(row[name] for row in rows) for name in ("trials", *VICTIMS)}
    whole = {"clusters": len(rows), "kills": sum(sums[one] for one in VICTIMS), **sums, "clusters_that_lost": len(bad)}
    return [whole, *bad], [f"seed {row['seed']}: {row['wrong']}" for row in bad]


PROGRAM = Program(name="cluster", unit="kills", size=100 * STEP, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
