"""Kernels that convert weights, run on the CPU from their own source."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.support.cases import H200, wgmma
from tests.support.converted import FAULTS, TILINGS, pair
from tests.support.emulated.chain import EmulatedChain, plans_of
from tests.support.reports import report_of
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.asked import workload_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.ops.gemm.quantised import Scheme
from tuner.workers.source.render import render

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: The kernels that are compiled for every change, since each takes some seconds.
_FEW = {"int4", "w4a8", "int4, mma", "another group's factor, by mma"}


def _some(names: Iterable[str]) -> list[Any]:
    return [name if name in _FEW else pytest.param(name, marks=pytest.mark.soak) for name in names]


def num_bad(tiling: str, changes: tuple[tuple[str, str], ...] = ()) -> int:
    """Counts the elements of both outputs whose error is larger than rounding explains."""
    scheme, chosen = TILINGS[tiling]
    return num_bad_of(pair(scheme), chosen, changes)


def num_bad_of(workload: Workload, chosen: Tiling, changes: tuple[tuple[str, str], ...] = ()) -> int:
    """Same as `num_bad`, for any workload."""
    assert tiling_problem(workload, H200, chosen) is None
    chain = EmulatedChain(workload)
    found = chain.run(chosen, plans_of(workload, chosen, is_fused=True), changes)
    wanted = chain.references()
    return sum(int((~(np.abs(found[name] - one.values) <= one.tolerance)).sum()) for name, one in wanted.items())


@pytest.mark.parametrize("tiling", _some(TILINGS))
def test_numbers_are_right(tiling: str) -> None:
    assert num_bad(tiling) == 0


@pytest.mark.soak
def test_a_stage_alone_precedes_pairs_of_stages() -> None:
    _, tiling = TILINGS["int4, many rows"]
    assert num_bad_of(pair(Scheme.INT4, d=768), tiling) == 0


@pytest.mark.soak
def test_a_run_of_a_layer_is_right() -> None:
    """The ops have norms, a gate, a residual, rotated heads that are written to a cache, and scales of groups."""
    heads = {"heads": 4, "kv_heads": 1, "head_dim": 64, "max_length": 50}
    ops = [
        {"name": "gate_up", "source": "r", "n": 512, "k": 256, "norm": "r", "gated": True, "activation": "silu"},
        {"name": "down", "source": "gate_up", "n": 256, "k": 512, "residual": "r", "is_output": True},
        {"name": "qkv", "source": "down", "n": 384, "k": 256, "norm": "down", "bias": True, "rotary": heads},
    ]
    stored = [{**op, "weights": "int4_g128"} for op in ops]
    workload = workload_of({"kind": "chain", "m": 5, "dtype": "bf16", "ops": stored})
    assert num_bad_of(workload, wgmma(*[(8, 64, 256)] * 3, swap_ab=True)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", _some(FAULTS))
def test_a_planted_fault_is_found(fault: str) -> None:
    tiling, before, after = FAULTS[fault]
    assert num_bad(tiling, ((before, after),)) > 0


@pytest.mark.parametrize("tiling", _some(TILINGS))
def test_the_compiler_spills_nothing_and_serialises_nothing(tiling: str) -> None:
    scheme, chosen = TILINGS[tiling]
    for arch in ("sm_90a",) if chosen.engine is Engine.WGMMA else ("sm_80", "sm_90a", "sm_120"):
        resources = report_of(render(pair(scheme), chosen), arch).resources
        assert (resources.spill_bytes, resources.warnings) == (0, ()), arch
