"""Times of requests to a real server over a store with ten thousand results."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import update

from benchmarks.common.report import check_row
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import Budget, JobSpec, JobState, Objective, default_regime
from tuner.core.trial.records import Best, FinalRow, Verdict
from tuner.ops.gemm.pairs import ffn_pair
from tuner.store import Store
from tuner.store.engine.gathering import gathering
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.tables.models import JobRow

TARGET = "simulated:h200"
#: The results file of most programs in this folder.
RESULTS = Path("benchmarks/results/cpu/service.json")
SIZES = (256, 512, 768, 1024, 2048, 2880, 4096, 5120, 8192, 14336)


def fill(directory: Path, num_jobs: int) -> list[tuple[int, int, int, int]]:
    """Adds jobs with results for many shapes; returns m, d_in, d_hidden and d_out of each."""
    chance = random.Random(1)
    workload = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
    space = Space(workload, CATALOGUE["h200"])
    schedule = next(iter(space))
    rows = tuple(
        FinalRow(candidate=Candidate(plan_kind=kind, schedule=schedule if kind.is_ours else None), trial_number=number,
                 time_us=60.0, spread=0.01, speedup=1.1, speedup_ci95=(1.0, 1.2), num_rounds=40)
        for number, kind in enumerate(PlanKind)
    )  # fmt: skip
    best = Best(
        job_id="",
        verdict=Verdict.TIE,
        winner=PlanKind.FUSED,
        tie_band=0.01,
        procedure=None,
        finals=rows,
        reference_us=40.0,
        artifact_digest=None,
        environment=Environment(gpu_name="simulated NVIDIA H200", simulated=True),
    )
    shapes = set[tuple[int, int, int, int]]()  # two open jobs may not request the same problem
    while len(shapes) < num_jobs:
        shapes.add((chance.randrange(1, 4097), chance.choice(SIZES), chance.choice(SIZES), chance.choice(SIZES)))
    store, budget = Store.open(directory), Budget(trials=60, seconds=60)
    with store.write() as session, session.no_autoflush:
        made = []
        with gathering(session):
            for m, d_in, d_hidden, d_out in shapes:
                asked = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out)
                objective = Objective(regime=default_regime(asked))
                spec = JobSpec(workload=asked, target_id=TARGET, objective=objective, budget=budget)
                made.append(jobs.insert(session, spec, 1.0).id)
        for job_id in made:
            bests.insert(session, replace(best, job_id=job_id))
        session.flush()
        # All are written at once: ten thousand jobs would take minutes if each went through its states.
        ended = {"state": str(JobState.SUCCEEDED), "started_at": 2.0, "finished_at": 2.0}
        session.execute(update(JobRow).values(ended))
    store.close()
    return sorted(shapes)


@contextmanager
def serving(directory: Path, num_descriptors: int | None = None) -> Iterator[tuple[str, int]]:
    """Yields the address and process id of `tuner serve` over that folder, limited to `num_descriptors`."""
    limited = ["prlimit", f"--nofile={num_descriptors}:{num_descriptors}"] if num_descriptors else []
    serve = ["-m", "tuner.cli", "serve", "--port", "0", "--data", str(directory), "--gpu", TARGET]
    command = [*limited, sys.executable, *serve]
    quiet = {**os.environ, "TUNER_LOG_LEVEL": "warning"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=quiet) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.terminate()


def ask_paths(url: str, paths: list[str]) -> list[float]:
    """Seconds of each request, sent in sequence over one connection."""
    taken = []
    with httpx.Client(base_url=url, timeout=60) as http:
        http.get("/livez")
        for path in paths:
            begin_s = time.perf_counter()
            http.get(path).raise_for_status()
            taken.append(time.perf_counter() - begin_s)
    return taken


def p99_row(check: str, url: str, pid: int, paths: list[str], bar_s: float) -> dict[str, Any]:
    """A row: the time of the requests for `paths` to a warm server."""
    ask_paths(url, paths[:5])
    before_s = cpu_s(pid)
    taken = ask_paths(url, paths)
    raw = {
        "asks": len(paths),
        "median_s": round(percentile(taken, 0.5), 6),
        "server_cpu_s": round((cpu_s(pid) - before_s) / len(paths), 6),
        "load_average": os.getloadavg()[0],
    }
    return check_row(check, percentile(taken, 0.99), bar_s, **raw)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def best_paths(shapes: list[tuple[int, int, int, int]], num_asks: int, match: str) -> list[str]:
    """`GET /best` for tuned shapes or, if the match is not exact, for similar shapes at any distance."""
    chance = random.Random(2)
    beside = 0 if match == "own shape" else 5000
    chosen = [chance.choice(shapes) for _ in range(num_asks)]
    return [
        f"/best?m={m + beside}&d_in={d_in}&d_hidden={d_hidden}&d_out={d_out}&match=nearest&max_distance=100"
        for m, d_in, d_hidden, d_out in chosen
    ]
