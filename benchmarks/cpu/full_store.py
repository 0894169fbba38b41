"""Times of pages and `GET /best` in a large store: 1,000,000 trials in 10,000 jobs, and a job of 100,000 trials.

python -m benchmarks.cpu.full_store [--data FOLDER] [--asks 200] [--out benchmarks/results/cpu/service.json]

All requests go to a real server over HTTP, first without a running job, then with one. The store is filled through
`tuner.store` with one job's trials, which the database then copies for the others. That takes minutes, so the store of
5 GB is kept and reused.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, merge_report
from benchmarks.cpu import best, large_job
from benchmarks.cpu.best import RESULTS, TARGET, best_paths, p99_row, serving

NUM_JOBS = 10_000
TRIALS_EACH = 100
LARGE_JOB = 100_000
#: Trials that are recorded one by one, and copied for the large job.
RECORDED = 1_000
PAGE_BAR_S = 0.100
BEST_BAR_S = 0.020
#: Duration of a simulated trial of the running job, seconds.
LATENCY_S = "0.5"

_TOTALS = "num_measured, num_rejected, num_failed, best_us, library_us, search_s, samples_bytes"


def fill(data: Path) -> dict[str, Any]:
    """The sizes of the jobs with results, and the ids of a job of 100 trials and of the large one."""
    shapes = best.fill(data, NUM_JOBS)
    large = large_job.fill(data, RECORDED)
    with closing(sqlite3.connect(data / "tuner.db", isolation_level=None)) as database:
        # The copy need not survive a crash, and a log would be as large as the file.
        for pragma in ("journal_mode = off", "synchronous = off", "locking_mode = exclusive", "cache_size = -1000000"):
            database.execute(f"pragma {pragma}")
        (ordinary,) = database.execute("select id from jobs order by seq desc limit 1 offset 1").fetchone()
        indexes = database.execute(
            "select name, sql from sqlite_master where type = 'index' and tbl_name in ('trials', 'events') "
            "and sql is not null"
        ).fetchall()
        database.execute("begin")
        for name, _ in indexes:
            database.execute(f"drop index {name}")
        _copy_trials(database, large)
        _enlarge(database, large)
        for _, sql in indexes:  # sorting a whole table is faster than a million insertions
            database.execute(sql)
        database.execute("commit")
        database.execute("pragma locking_mode = normal")
        database.execute("pragma journal_mode = wal")
    return {"shapes": shapes, "ordinary": ordinary, "large": large}


def _copy_trials(database: sqlite3.Connection, source: str) -> None:
    """Gives each of the other jobs the first trials of `source`, with their events and totals."""
    answers = "kind in ('trial', 'best') and json_extract(data, '$.number') < ?"
    for table, which in (("trials", "number < ?"), ("events", answers)):
        columns = [row[1] for row in database.execute(f"pragma table_info({table})") if row[1] not in ("job_id", "id")]
        listed = ", ".join(columns)
        database.execute(
            f"create temp table first_{table} as select {listed} from {table} where job_id = ? and {which}",
            (source, TRIALS_EACH),
        )
        database.execute(
            f"insert into {table} (job_id, {listed}) select jobs.id, {', '.join('t.' + one for one in columns)} "
            f"from (select id from jobs where id != ? order by id) jobs cross join first_{table} t",
            (source,),
        )
    database.execute(
        f"update jobs set ({_TOTALS}) = (select sum(outcome = 'measured'), sum(outcome = 'rejected'), "
        "sum(outcome = 'failed'), min(time_us), 70.0, 10.0, sum(length(samples)) from trials where job_id = jobs.id) "
        "where id != ?",
        (source,),
    )


def _enlarge(database: sqlite3.Connection, job: str) -> None:
    """Repeats a job's trials until it has the number of trials of the large job."""
    columns = [row[1] for row in database.execute("pragma table_info(trials)") if row[1] not in ("job_id", "number")]
    database.execute(
        "with recursive turn(n) as (select 1 union all select n + 1 from turn where n < ?) "
        f"insert into trials (job_id, number, {', '.join(columns)}) "
        f"select job_id, number + n * ?, {', '.join(columns)} from turn, (select * from trials where job_id = ?)",
        (LARGE_JOB // RECORDED - 1, RECORDED, job),
    )
    names = ("num_measured", "num_rejected", "num_failed", "samples_bytes")
    totals = ", ".join(f"{one} = {one} * {LARGE_JOB // RECORDED}" for one in names)
    database.execute(f"update jobs set {totals} where id = ?", (job,))


def ask_all(url: str, pid: int, store: dict[str, Any], num_asks: int, when: str) -> list[dict[str, Any]]:
    """A row for each kind of request, with one client."""
    rows = []

    def add(what: str, paths: list[str], bar_s: float) -> None:
        rows.append(p99_row(f"p99 of {what}, 1,100,000 trials, {when}, seconds", url, pid, paths, bar_s))

    chance = random.Random(3)
    for name in ("ordinary", "large"):
        job = store[name]
        measured = httpx.get(f"{url}/jobs/{job}/trials?outcome=measured&sort=time&limit=100", timeout=60).json()[
            "items"
        ]
        trials = [f"/jobs/{job}/trials/{chance.choice(measured)['number']}/samples" for _ in range(num_asks)]
        add(f"the page of the {name} job", [f"/ui/jobs/{job}"] * num_asks, PAGE_BAR_S)
        add(f"the {name} job's trials by time", [f"/jobs/{job}/trials?sort=time"] * num_asks, PAGE_BAR_S)
        add(f"a trial of the {name} job", trials, PAGE_BAR_S)
    add("the front page", ["/"] * num_asks, PAGE_BAR_S)
    shapes = [tuple(one) for one in store["shapes"]]
    for match in ("own shape", "nearest shape"):
        add(f"GET /best, {match}", best_paths(shapes, num_asks, match), BEST_BAR_S)
    return rows


def start_job(url: str, warm_up_s: float) -> None:
    """Starts a job that runs longer than this program, and waits for its first trials."""
    pair = {"kind": "ffn", "m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096}
    asked = {"pair": pair, "target": TARGET, "budget": {"trials": 5000, "seconds": 3600}}
    job = httpx.post(f"{url}/jobs", json=asked, timeout=60).raise_for_status().json()["id"]
    end = time.monotonic() + warm_up_s
    while time.monotonic() < end and httpx.get(f"{url}/jobs/{job}", timeout=60).json()["num_trials"] < 30:
        time.sleep(0.5)


def measure(data: Path, num_asks: int) -> list[dict[str, Any]]:
    """Measures all rows."""
    described = data / "filled.json"
    if not described.exists():
        described.parent.mkdir(parents=True, exist_ok=True)
        described.write_text(json.dumps(fill(data)))
    store = json.loads(described.read_text())
    os.environ["TUNER_SIMULATED_LATENCY_S"] = LATENCY_S
    with serving(data) as (url, pid):
        rows = ask_all(url, pid, store, num_asks, "idle")
        start_job(url, 60.0)
        rows += ask_all(url, pid, store, num_asks, "a job running")
    return rows


def main() -> None:
    """Measures and writes its rows into the results file."""
    arguments = parser_of(__doc__, "asks", data=Path("build/full-store"), out=RESULTS).parse_args()
    rows = measure(arguments.data, arguments.asks)
    merge_report(arguments.out, rows, NO_GPU)


if __name__ == "__main__":
    main()
