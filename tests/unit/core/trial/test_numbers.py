"""Inputs and references of launch ops: inputs are within their ranges, and every written tensor has a reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import toys
from tests.support.lanes import soak_unless

_PROGRAM = """
import numpy as np
from tuner.core.problem.ops.op import Role
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.numbers import drawn
workload = Workload.from_json({"kind": "chain", "ops": [OP], "dtype": "bf16"})
(op,) = workload.ops
numbers, random = part_of(op.KIND, "numbers"), np.random.default_rng(1)
tensors = op.tensors(workload.dtype)
for turn in range(4):
    given = {one.name: drawn(numbers, op, one, turn, random) for one in tensors if one.role is not Role.OUTPUT}
    for one in tensors:
        if one.range:
            assert one.range[0] <= given[one.name].min() <= given[one.name].max() <= one.range[1]
    found = numbers.reference(op, dict(given), workload.dtype, np)
    for name, expected in found.items():
        (tensor,) = (one for one in tensors if one.name == name)
        assert expected.values.shape == tensor.shape, name
        assert np.isfinite(expected.values).all(), name
        assert expected.tolerance is None or (np.broadcast_to(expected.tolerance, tensor.shape) > 0).all(), name
    assert {one.name for one in tensors if one.role is Role.OUTPUT} <= set(found)
    counts = [int(given[name][0]) for name in given if name.endswith(".count")]
    print(turn, sorted(found), *counts)
"""
OPS = {
    "gather": ("gather", {"op": "gather", "name": "it", "m": 16, "n": 64, "table_rows": 32}, [16, 0, 16]),
    "absmax": ("strangers", {"op": "absmax", "name": "it", "m": 16, "n": 64}, None),
    "tally": ("strangers", {"op": "tally", "name": "it", "m": 16, "k": 64}, [16, 1, 16]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", soak_unless(lambda _, kind: kind == "gather", OPS))
def test_every_turn_has_numbers_within_their_ranges_and_a_reference(kind: str, tmp_path: Path) -> None:
    package, op, counts = OPS[kind]
    lines = toys.run(_PROGRAM.replace("OP]", f"{op}]"), toys.install(package, tmp_path)).splitlines()
    assert len(lines) == 4
    if counts is not None:
        assert [int(line.rsplit(" ", 1)[1]) for line in lines[:3]] == counts, "the maximum, the minimum, the maximum"
