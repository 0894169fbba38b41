"""Documents of released versions can be read, and the current program writes them unchanged: JSON, digests and
proofs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.unit.frozen.documents import read, row_of, rows
from tuner.core.problem.workload import WorkloadKind
from tuner.core.trial.job import JobSpec
from tuner.wire.requests.pairs import AnswerPair, workload_of

ROWS = rows()
PAIR: TypeAdapter[Any] = TypeAdapter(AnswerPair)


@pytest.mark.parametrize("name", ROWS)
def test_a_frozen_row_is_read_and_written_again_as_it_was(name: str) -> None:
    workload, candidate = read(ROWS[name])
    assert row_of(workload, candidate) == ROWS[name]
    assert JobSpec.from_json(ROWS[name]["job"]).workload == workload


@pytest.mark.parametrize("name", ROWS)
def test_a_frozen_request_asks_for_the_workload_that_it_asked_for(name: str) -> None:
    pair = PAIR.validate_python(ROWS[name]["pair"])
    assert workload_of(pair).digest == ROWS[name]["digests"][2]


def test_every_kind_of_workload_and_of_plan_is_among_them() -> None:
    kinds = {row["workload"]["kind"] for row in ROWS.values()}
    assert kinds == set(WorkloadKind)
    found = {row["plan_kind"] for row in ROWS.values()}
    assert found >= {"fused", "fused_pdl", "two_launches", "two_launches_pdl", "two_streams", "n_launches_pdl", "runs"}
    with_attention = [row for row in ROWS.values() if any("op" in op for op in row["workload"]["ops"])]
    assert len(ROWS) >= 40
    assert len(with_attention) >= 10
