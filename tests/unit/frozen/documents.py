"""Workloads, schedules and jobs as JSON, in the domain's and in the wire's form, with digests.

python -m tests.unit.frozen.documents    adds missing rows. Existing ones stay: rows, digests and artifacts of released
versions depend on them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.cases import H200
from tests.support.conformance.table import CASES
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import Budget, JobSpec, Objective
from tuner.ops.attention.plans import digest_of
from tuner.wire.requests.pairs import pair_of, workload_of

FILE = Path(__file__).with_suffix(".json.gz")
#: Rows, spread over the tables of `tests/support/conformance`.
NUM_ROWS = 60

Row = dict[str, Any]


def row_of(workload: Workload, candidate: Candidate) -> Row:
    """All output of the program for a candidate, except its words."""
    schedule = candidate.schedule
    assert schedule is not None
    plans = plans_for(workload, H200, candidate)
    pairs = zip(own_plans_for(workload, H200, candidate), schedule.launch_ops, strict=True)
    pair = pair_of(workload)
    asked = JobSpec(
        workload=workload, target_id="h200", objective=Objective(), budget=Budget(trials=60, seconds=600), seed=0
    )
    row = {
        "job": asked.to_json(),
        "problem": asked.problem_digest,
        "plan_kind": str(candidate.plan_kind),
        "workload": workload.to_json(),
        "schedule": schedule.to_json(),
        "pair": pair.model_dump(mode="json"),
        "digests": [workload.digest, schedule.digest, workload_of(pair).digest],
        "proofs": [*(plan.digest[:16] for plan in plans), *(digest_of(*pair)[:16] for pair in pairs)],
    }
    written: Row = json.loads(json.dumps(row))  # without tuples
    return written


def read(row: Row) -> tuple[Workload, Candidate]:
    """The workload and schedule of a row."""
    schedule = Schedule.from_json(row["schedule"])
    return Workload.from_json(row["workload"]), Candidate(plan_kind=PlanKind(row["plan_kind"]), schedule=schedule)


def rows() -> dict[str, Row]:
    """The stored rows."""
    kept: dict[str, Row] = json.loads(gzip.decompress(FILE.read_bytes())) if FILE.exists() else {}
    return kept


def _candidates() -> Iterator[tuple[str, Workload, Candidate]]:
    ours = [case for case in CASES if case.candidate.schedule is not None and case.built_for is None]
    with_attention = [case for case in ours if case.workload.launch_ops]
    products = [case for case in ours if not case.workload.launch_ops]
    beside = [case for case in products if case.workload.kind is WorkloadKind.INDEPENDENT]
    runs = [case for case in products if case.candidate.plan_kind.is_in_runs]
    for some, number in ((beside, 2), (runs, 3), (products, NUM_ROWS * 2 // 3), (with_attention, NUM_ROWS // 3)):
        for case in some[:: -(-len(some) // number)]:
            yield case.id, case.workload, case.on(H200)


def main() -> None:
    """Writes the file."""
    made = {name: row_of(workload, candidate) for name, workload, candidate in _candidates()}
    data = json.dumps(made | {name: made.get(name, {}) | row for name, row in rows().items()}, indent=1)
    FILE.write_bytes(gzip.compress(data.encode(), mtime=0))
    print(f"wrote {len(json.loads(data))} rows to {FILE}")


if __name__ == "__main__":
    main()
