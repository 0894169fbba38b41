"""Tile ops of another package that do not have exactly one source and one output: their device code, run on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import toys

EMULATED = """
from tests.support.emulated.chain import EmulatedChain, plans_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling

plain = {"m": 40, "activation": "identity", "bias": False}
ops = [
    {"op": "pool", "name": "pooled", "m": 40, "n": 72, "height": 8, "width": 10, "source": "x"},
    plain | {"name": "side", "n": 72, "k": 64, "source": "z"},
    {"op": "split", "name": "halves", "m": 40, "n": 72, "source": "side", "gate": "pooled"},
    {"op": "running", "name": "mean", "m": 40, "n": 72, "source": "halves.rest"},
    plain | {"name": "down", "n": 32, "k": 72, "source": "mean"},
]
workload = Workload.from_json({"kind": "chain", "ops": ops, "dtype": "fp16"})
tiling = Tiling(tiles=(Tile(m=16, n=32, k=32),) * len(ops), num_stages=2, num_warps=4)

def is_right(*faults, is_fused=True):
    emulated = EmulatedChain(workload)
    got = emulated.run(tiling, plans_of(workload, tiling, is_fused=is_fused), faults)
    return emulated.worst_row(got) < 2e-3

print(is_right(), is_right(is_fused=False))
print(is_right(("row + y", "row"), ("factors(op)[column]", "factors(op)[0]")))
print(is_right(("state(op)[at] = now", "state(op)[at] += now")))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_each_tensor_is_right_fused_and_apart_and_a_fault_shows(tmp_path: Path) -> None:
    printed = toys.run(EMULATED, toys.install("operands", tmp_path), timeout_s=300).splitlines()
    assert printed == ["True True", "False", "False"]
