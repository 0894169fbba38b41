"""A server with many concurrent clients: every job ends well, and every client sees all of its own events exactly once.

python -m tests.soak.loads [--size 1000] [--seed 1]
"""

from __future__ import annotations

import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soak.program import Program, Row, Step, main, total
from tests.support.serving import SMALL_PAIR, body, listening, running_service
from tuner.client import Client

#: Concurrent jobs of one server, each with its own client.
STEP = 10


def follow(url: str, seed: int, number: int) -> Row:
    """One client: submits twice with one key, follows the events, and fetches what they announce; returns what went
    wrong."""
    chance = random.Random(f"{seed} {number}")
    num_trials = chance.randint(3, 12)
    pair = {**SMALL_PAIR, "d_out": 64 + 8 * number}  # if the pair was requested before, the result already exists
    asked = body(pair=pair, budget={"trials": num_trials, "seconds": 120}, seed=chance.randrange(2**31))
    with Client(url) as client:
        job_id, again = (client.submit(asked, idempotency_key=f"{seed}-{number}")["id"] for _ in range(2))
        seen = [event["data"]["number"] for event in client.events(job_id, timeout_s=120) if event["kind"] == "trial"]
        job, numbers = client.job(job_id), [trial["number"] for trial in client.trials(job_id)]
        best = client.best(job_id)
    checks = {
        "submitted twice": job_id == again,
        "not succeeded": job["state"] == "succeeded",
        "trials lost or doubled": numbers == list(range(num_trials)),
        "events lost or doubled": seen == numbers,
        "no answer": best["verdict"] is not None,
    }
    return {
        "clients": "all",
        "jobs": 1,
        "trials": len(numbers),
        **{name: int(not good) for name, good in checks.items()},
    }


def work(step: Step) -> list[Row]:
    """Runs one server and its clients."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_service(Path(folder) / "data") as service,
        listening(service) as url,
        ThreadPoolExecutor(step.count) as clients,
    ):
        return total(clients.map(lambda number: follow(url, step.seed, number), range(step.count)), "clients")


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no client saw anything wrong."""
    (row,) = total(rows, "clients")
    good = ("clients", "jobs", "trials")
    return [row], [
        f"{count} of {row['jobs']} jobs: {name}" for name, count in row.items() if name not in good and count
    ]


PROGRAM = Program(name="loads", unit="jobs", size=100 * STEP, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
