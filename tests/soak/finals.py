"""A cluster whose server, scheduler, workers and their children are killed (-9) in the middle of finals loses no trial,
counts none twice, and ends every job with one result.

python -m tests.soak.finals [--size 200] [--seed 1]

Each cluster loses one process of each kind, in any order. The kills happen while a job is in its finals, or just after
them, while its kernel is packed and its result is written.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.soak.cluster import FINAL, LIMIT_S, VICTIMS, Cluster, at_once, problem_of, recorded, rows
from tests.soak.program import Program, Row, Step, main
from tests.support.waiting import wait_until

NUM_TRIALS = 6
#: Rounds in each of the two processes of the finals.
FINALS_S = 0.5
#: The latest kill, seconds after the beginning of finals, which take more than twice `FINALS_S`.
LATEST_S = 1.6


def states(folder: Path) -> list[str]:
    return [state for (state,) in rows(folder, "select state from jobs")]


def is_in_finals(cluster: Cluster, folder: Path) -> bool:
    """Whether a job is in its finals; submits new jobs if all have ended."""
    found = states(folder)
    if all(state in FINAL for state in found):
        cluster.submit_where_idle()
    return "finals" in found


def result_problem_of(folder: Path) -> str:
    """What is wrong with results and steps of jobs; empty if each job that succeeded did so once, with a kernel."""
    stepped, results, jobs = at_once(
        folder,
        "select job_id, json_extract(data, '$.state') from events where kind = 'state' order by id",
        "select bests.job_id, bests.artifact_digest from bests join artifacts on digest = artifact_digest",
        "select id, state from jobs",
    )
    for job, state in jobs:
        steps = [step for one, step in stepped if one == job]
        if state in FINAL and steps != ["queued", "searching", "finals", "succeeded"]:
            return f"{job} went through {steps}"
        digests = [digest for one, digest in results if one == job]
        if len(digests) != (state == "succeeded"):
            return f"{job} is {state}, and has {len(digests)} results"
        if any(not list((folder / "data" / "artifacts").rglob(f"{digest}*")) for digest in digests):
            return f"the kernel of {job} is missing"
    return ""


def work(step: Step) -> list[Row]:
    """Runs one cluster."""
    chance, wrong, num_in_finals = random.Random(step.seed), "", Counter[str]()
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = Path(name)
        cluster = Cluster(folder, chance, ends, f"0.0/{FINALS_S}", NUM_TRIALS)
        for victim in chance.sample(VICTIMS, len(VICTIMS)):
            cluster.submit_where_idle()
            wait_until(lambda: is_in_finals(cluster, folder), LIMIT_S, 0.02)
            time.sleep(chance.uniform(0.0, LATEST_S))
            kept = recorded(folder)
            num_in_finals[victim] += "finals" in states(folder)
            cluster.kill(victim)
            now = recorded(folder)
            lost = [key for key, row in kept.items() if now.get(key) != row]
            wrong = wrong or (f"gone or changed: {lost}" if lost else "")
            wrong = wrong or problem_of(folder, NUM_TRIALS) or result_problem_of(folder)
        wrong = wrong or cluster.wait_until_all_ended() or problem_of(folder, NUM_TRIALS) or result_problem_of(folder)
        num_jobs = len(states(folder))
        if wrong and (log := folder / "log").exists():
            wrong += f"; {log.read_text()[-1000:]}"
    return [{"seed": step.seed, "jobs": num_jobs, **{one: num_in_finals[one] for one in VICTIMS}, "wrong": wrong}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no cluster lost anything; also lists how many kills of each kind hit a job in its finals."""
    bad = [row for row in rows if row["wrong"]]
    sums = {name: sum(row[name] for row in rows) for name in ("jobs", *VICTIMS)}
    in_finals = {f"{one}_in_finals": sums[one] for one in VICTIMS}
    whole = {"clusters": len(rows), "kills": len(rows) * len(VICTIMS), "jobs": sums["jobs"], **in_finals}
    return [whole | {"clusters_that_lost": len(bad)}, *bad], [f"seed {row['seed']}: {row['wrong']}" for row in bad]


PROGRAM = Program(name="finals", unit="kills", size=200, step=len(VICTIMS), work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
