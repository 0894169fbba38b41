"""What kernels of 8-bit elements refuse and accept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import H200, wgmma
from tests.support.quantised import TILINGS, pair
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.tiling import Engine, Epilogue, Tile, Tiling
from tuner.core.space.space import Space
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.quantised import Scheme

PAIR = pair(Scheme.TOKEN)
SWAPPED = TILINGS["swapped"]


def with_options(**options: Any) -> Workload:
    """A workload whose first op, which is not gated, has `options`."""
    first, second = PAIR.tile_ops
    return replace(PAIR, ops=(replace(first, gated=False, **options), second))


@pytest.mark.parametrize("tiling", TILINGS)
def test_each_kernel_of_the_tests_is_legal(tiling: str) -> None:
    assert tiling_problem(PAIR, H200, TILINGS[tiling]) is None


@pytest.mark.parametrize(
    ("workload", "tiling", "problem"),
    [
        (PAIR, replace(SWAPPED, in_band=True), "in_band"),
        (PAIR, replace(TILINGS["wide"], epilogue=Epilogue.TMA), "epilogue tma"),
        (PAIR, wgmma((64, 104, 128), (64, 64, 128)), "104 sums per thread: use at most 96"),
        (PAIR, wgmma((64, 32, 64), (64, 32, 64)), "k must be one of 128, 256, 512, 1024"),
        (
            PAIR,
            Tiling(tiles=(Tile(m=16, n=32, k=64),) * 2, num_stages=3, num_warps=4),
            "mma does not multiply fp8_e4m3: use wgmma or simt",
        ),
        (with_options(residual=True), SWAPPED, "up has a residual"),
        (replace(PAIR, ops=(PAIR.ops[0], replace(PAIR.tile_ops[1], norm="up"))), SWAPPED, "up has a norm after it"),
        (pair(Scheme.TOKEN, d=376), SWAPPED, "TMA needs multiples of 16"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_it_does_not_do_is_refused_by_name(workload: Workload, tiling: Tiling, problem: str) -> None:
    assert problem in str(tiling_problem(workload, H200, tiling))


@pytest.mark.parametrize("engine", [Engine.SIMT, Engine.WGMMA])
def test_a_card_without_conversions_is_told_so(engine: Engine) -> None:
    tiling = TILINGS["simt" if engine is Engine.SIMT else "wide"]
    problem = str(tiling_problem(PAIR, CATALOGUE["a100"], tiling))
    assert "compute capability 8.0, and fp8_e4m3 needs 8.9" in problem


def test_there_is_no_space_for_such_a_card() -> None:
    with pytest.raises(IllegalSchedule, match="fp8_e4m3 needs 8"):
        Space(PAIR, CATALOGUE["a100"])


def test_what_is_read_is_stored_as_it_is_read() -> None:
    up = GemmOp(name="up", m=4, n=256, k=256, out_dtype=Dtype.BF16)
    down = GemmOp(name="down", m=4, n=256, k=256, source="up")
    with pytest.raises(InvalidInput, match=r"up\.out_dtype: down reads up as fp8_e4m3, but it is stored in bf16"):
        Workload(kind=WorkloadKind.CHAIN, ops=(up, down), dtype=Dtype.FP8_E4M3)


def test_both_forms_of_json_have_the_type_of_an_output() -> None:
    assert Workload.from_json(PAIR.to_json()) == PAIR
    assert [op.stored_in(PAIR.dtype) for op in PAIR.tile_ops] == [Dtype.FP8_E4M3, Dtype.BF16]
