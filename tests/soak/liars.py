"""A cluster with workers that send false results ends its jobs with plausible figures, and all its pages load.

python -m tests.soak.liars [--size 400] [--seed 1]

A step is a service with one honest worker, several that each falsify one kind of answer, and a job for each of them.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.service.dispatch.clusters import Members
from tests.soak.program import Program, Row, Step, main, total
from tests.support.builders import spec
from tests.support.liars import lies
from tests.support.serving import listening, wait_until_final, wait_until_inspected
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.trial.believable import believe
from tuner.core.trial.job import JobState
from tuner.core.trial.limits import Limits
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.calls import WorkerCalls
from tuner.dispatch.cluster.security import security_for
from tuner.service import Service
from tuner.store import Store
from tuner.workers.simulated.evaluator import SimulatedEvaluator

STEP = 4
SIZE = 400
TARGET = parse_target("simulated:h200")
KINDS = ("prepare", "measure", "finals", "artifact", "energy", "count", "trace")


def add_liar(members: Members, ends: ExitStack, folder: Path, number: int, chance: random.Random) -> str:
    """Adds a worker that falsifies every answer of one kind; returns the kind."""
    op = chance.choice(KINDS)
    honest = WorkerCalls(f"liar{number}", [SimulatedEvaluator(TARGET)], folder, Limits(), num_places=1)
    ends.callback(honest.close)

    async def answer(payload: object) -> bytes:
        said = await honest.answer(payload)
        return lies(said, chance) if messages.decode_call(payload).op == op else said

    members.add_worker([SimulatedEvaluator(TARGET)], answer=answer, name=f"liar{number}")
    return op


def work(step: Step) -> list[Row]:
    """Runs one service with false workers."""
    chance = random.Random(step.seed)
    with ExitStack() as ends, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        members = Members(security_for("tcp://127.0.0.1:1", None), folder)
        ends.callback(members.close)
        kinds = [add_liar(members, ends, folder, number, chance) for number in range(step.count)]
        members.add_worker([SimulatedEvaluator(TARGET)], name="honest")
        dispatcher = members.dispatcher()
        service = Service(Store.open(folder / "data"), dispatcher)
        ends.callback(service.close)
        wait_until(lambda: dispatcher.num_workers(TARGET.id) == step.count + 1)
        service.start()
        job_ids = [service.submit(spec(16 * (1 + number), trials=12))[0].id for number in range(step.count)]
        ended = [wait_until_final(service, job_id) for job_id in job_ids]
        with listening(service) as url, httpx.Client(base_url=url, timeout=120) as http:
            faults = sum(_faults(service, http, job_id) for job_id in job_ids)
    lost = sum(state != JobState.SUCCEEDED for state in ended)
    return [{"kind": kind, "liars": kinds.count(kind), "lost": 0, "faults": 0} for kind in sorted(set(kinds))] + [
        {"kind": "jobs", "liars": 0, "lost": lost, "faults": faults}
    ]


def _faults(service: Service, http: httpx.Client, job_id: str) -> int:
    """The number of impossible figures, and of pages that do not load."""
    wait_until_inspected(service, job_id)
    for trial in service.trials(job_id, limit=500).items:
        believe(trial.outcome)
    paths = ("/", f"/jobs/{job_id}", f"/ui/jobs/{job_id}", f"/jobs/{job_id}/trials", f"/jobs/{job_id}/best", "/metrics")
    return sum(http.get(path, headers={"Accept": "text/html"}).status_code >= 500 for path in paths)


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Rows by kind of answer; returns what was lost."""
    summed = total(rows, "kind")
    wrong = [f"{row['lost']} jobs did not succeed" for row in summed if row["lost"]]
    return summed, wrong + [f"{row['faults']} pages did not answer" for row in summed if row["faults"]]


PROGRAM = Program(name="liars", unit="liars", size=SIZE, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
