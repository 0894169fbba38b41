"""Scales of 1 x 128 inputs and 128 x 128 weights: which ops may have them, what they mean, and which kernels do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import H200, simt, wgmma
from tests.support.quantised import BLOCK_TILINGS, GROUP_TILINGS, grouped, pair
from tuner.core.legal.legality import tiling_problem
from tuner.core.legal.warpgroups.parts import exchanged_numbers, max_sums_beside, operands_problem
from tuner.core.legal.wgmma import wgmma_columns
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.scales.block_scale import BlockScale
from tuner.core.problem.epilogue.scales.channel_scale import ChannelScale
from tuner.core.problem.epilogue.scales.group_scale import GroupScale
from tuner.core.problem.epilogue.sums import Known, Sums
from tuner.core.problem.ops.op import Role
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import PartSums, Tile, Tiling
from tuner.core.space.space import Space
from tuner.errors import InvalidInput
from tuner.ops.gemm.quantised import Scheme

PAIR = pair(Scheme.BLOCK, m=5, d=512, hidden=256)
UP: Any = PAIR.tile_ops[0]
DOWN: Any = PAIR.tile_ops[1]
#: Only the intermediate has scales of groups.
GROUPS = pair(Scheme.TOKEN_GROUPS, m=5, d=512, hidden=256)
ALONE: Any = GROUPS.tile_ops[1]


def test_the_pair_has_scales_of_inputs_weights_and_intermediate() -> None:
    found = {(one.name, one.role): one.shape for op in PAIR.tile_ops for one in op.tensors(PAIR.dtype)}
    assert found["x.group_scale_factors", Role.INPUT] == (5, 4)
    assert found["up.block_scale_weights", Role.WEIGHT] == (4, 4)
    assert found["up.group_scale_factors", Role.OUTPUT] == found["up.group_scale_factors", Role.INPUT] == (5, 2)
    assert found["down.block_scale_weights", Role.WEIGHT] == (4, 2)
    assert Workload.from_json(PAIR.to_json()) == PAIR
    weights, scales = 3 * 256 * 512, 4 * (4 * 4 + 4 * 2)
    assert PAIR.compulsory_read_bytes == weights + scales + 5 * 512 + 4 * 5 * 4


def test_scales_of_inputs_alone_are_for_any_rows_of_weights() -> None:
    """Those of weights commute with the sum over k."""
    found = {(one.name, one.role): one.shape for op in GROUPS.tile_ops for one in op.tensors(GROUPS.dtype)}
    assert found["up.group_scale_factors", Role.OUTPUT] == found["up.group_scale_factors", Role.INPUT] == (5, 2)
    assert {name for name, role in found if role is Role.WEIGHT} == {
        f"{op}.{what}" for op in ("up", "down") for what in ("weight", "channel_scale_factors")
    }
    assert replace(ALONE, n=200).n == 200
    assert Workload.from_json(GROUPS.to_json()) == GROUPS
    scales = np.array([[2.0, 4.0]])
    a, w = ALONE.parts[0].multiplied(
        ALONE, {"up.group_scale_factors": Known(values=scales)}, np, np.ones((1, 256)), np.ones((512, 256))
    )
    assert (a[0, 127], a[0, 128], w.max()) == (2, 4, 1)


def test_operands_are_multiplied_by_the_scales_of_their_blocks() -> None:
    rng = np.random.default_rng(0)
    scales = {one.name: rng.uniform(0.5, 2, one.shape) for op in PAIR.ops for one in op.tensors(PAIR.dtype)}
    known = {name: Known(values=values) for name, values in scales.items()}
    a, w = UP.parts[0].multiplied(UP, known, np, np.ones((5, 512)), np.ones((512, 512)))
    assert a[3, 257] == scales["x.group_scale_factors"][3, 2]
    assert w[300, 129] == scales["up.block_scale_weights"][2, 1]


def test_a_group_has_the_scale_of_its_largest_element() -> None:
    values = np.zeros((5, 256))
    values[1, 130], values[1, 255], values[2, 0] = -896.0, 5.0, 448e-12
    sums = Sums(xp=np, row=Dtype.FP8_E4M3.row, values=values, error=np.zeros_like(values), held=np.abs(values))
    [(factors, error)] = GroupScale().made(UP, sums, {}).values()
    assert factors[1].tolist() == [1e-10 / 448, 2.0]
    assert sums.values[1, 130] == -448
    assert sums.values[1, 255] == 2.5
    assert (factors[0] > 0).all()
    assert (error <= 2e-6 * factors).all()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda: pair(Scheme.BLOCK, d=448, hidden=256), r"up\.k: is 448, but block_scale .*; use a multiple of 128"),
        (lambda: pair(Scheme.BLOCK, d=512, hidden=192), r"up\.n: is 192, but .*; use a multiple of 128"),
        (lambda: replace(PAIR, dtype=Dtype.BF16, ops=(UP, replace(DOWN, out_dtype=None))), "the dtype is bf16"),
        (lambda: replace(PAIR, ops=(replace(UP, epilogue=(BlockScale(),)), DOWN)), "give up the part group_scale"),
        (lambda: replace(PAIR, ops=(UP, replace(DOWN, epilogue=(ChannelScale(),)))), "give down the part block_scale"),
        (lambda: replace(UP, epilogue=(GroupScale(), ChannelScale())), "has group_scale and a part after it"),
        (lambda: replace(UP, residual=True), "has group_scale and a residual"),
        (lambda: replace(UP, row_scale=True), "has block_scale and a row scale"),
        (lambda: replace(ALONE, row_scale=True), "has input_scale and a row scale"),
        (lambda: replace(ALONE, k=320), r"down\.k: is 320, but input_scale has a scale for 128 elements of a row"),
        (
            lambda: replace(GROUPS, ops=(replace(GROUPS.ops[0], epilogue=(ChannelScale(),)), ALONE)),  # type: ignore[type-var]
            "reads up, which is stored without scales of groups; give up the part group_scale",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_field(changed: Callable[[], Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        changed()


@pytest.mark.parametrize(
    ("tiling", "problem"),
    [
        (simt((4, 16, 512), (4, 16, 512), num_warps=4), "part block_scale, which only wgmma supports: use wgmma"),
        (wgmma((64, 128, 128), (64, 128, 128)), None),
        (wgmma((128, 128, 128), (128, 64, 128)), "256 sums per thread: use at most 128"),
        (wgmma((64, 128, 128), (64, 256, 128), num_stages=3), None),
        (
            wgmma((64, 128, 128), (64, 96, 128)),
            "the part block_scale: without swapped operands, use an n that divides 128, or a multiple of it",
        ),
        (
            wgmma((64, 128, 128), (64, 64, 128), split_k=(2, 1), part_sums=PartSums.SCATTERED),
            "the part group_scale, which stores whole rows of a tile, and each CTA has some columns: use swap_ab true",
        ),
        (wgmma((64, 128, 128), (64, 64, 128), split_k=(1, 2), part_sums=PartSums.SCATTERED), None),
        (
            wgmma((64, 32, 128), (64, 64, 128)),
            "up has the part group_scale, which needs 128 columns: use n 128 for each CTA",
        ),
        (
            wgmma((8, 64, 128), (8, 64, 128), swap_ab=True),
            "the part group_scale, which needs 128 columns: use n 128",
        ),
        (wgmma((16, 256, 128), (16, 128, 128), swap_ab=True, cluster_n=2), None),
        (wgmma((48, 128, 128), (48, 64, 128), swap_ab=True), "96 sums per thread: use at most 64"),
        (wgmma((64, 128, 128), (64, 192, 128), swap_ab=True, num_warps=12), "64 sums per thread: use at most 32"),
    ],
)
def test_kernels_have_a_group_in_each_tile(tiling: Tiling, problem: str | None) -> None:
    found = tiling_problem(PAIR, H200, tiling)
    assert found is None if problem is None else problem in str(found)


def test_the_parts_say_what_they_need_of_kernels() -> None:
    sharing = wgmma((64, 128, 128), (64, 64, 128), cluster_k=2)
    assert "stores whole rows of a tile" in str(operands_problem(PAIR, sharing))
    assert operands_problem(PAIR, replace(sharing, swap_ab=True)) is None
    limits = {
        swap_ab: [max_sums_beside(UP, groups, swap_ab=swap_ab) for groups in (1, 2, 3)] for swap_ab in (True, False)
    }
    assert limits == {True: [64, 64, 32], False: [128, 128, 32]}
    wide, narrow, stage = Tile(m=64, n=256, k=128), Tile(m=64, n=32, k=128), Tile(m=64, n=128, k=256)
    assert [wgmma_columns(DOWN, one, PAIR.dtype, swap_ab=False) for one in (wide, narrow, stage)] == [128, 32, 128]
    assert wgmma_columns(DOWN, wide, PAIR.dtype, swap_ab=True) == 64
    assert exchanged_numbers(UP, 4) == 5
    assert exchanged_numbers(DOWN, 4) == 0


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 16, 64])
@pytest.mark.parametrize("hidden", [3584, 18944])
def test_a_space_has_such_kernels(m: int, hidden: int) -> None:
    """Whatever the number of tiles of 128 columns is."""
    assert Space(pair(Scheme.BLOCK, m=m, d=4096, hidden=hidden), H200).guesses


@pytest.mark.parametrize("m", [64, 128, 512])
def test_with_many_rows_the_first_kernels_have_w_as_operand_b(m: int) -> None:
    """A thread then reads two scales of inputs instead of one for a quarter of the rows."""
    guesses = Space(pair(Scheme.BLOCK, m=m, d=4096, hidden=14336), H200).guesses
    assert not guesses[0].swap_ab
    assert any(one.swap_ab for one in guesses)


@pytest.mark.parametrize("tiling", GROUP_TILINGS)
def test_kernels_of_scales_of_inputs_alone_are_legal(tiling: str) -> None:
    assert tiling_problem(grouped(tiling), H200, GROUP_TILINGS[tiling][1]) is None


@pytest.mark.parametrize("tiling", BLOCK_TILINGS)
def test_kernels_of_the_tests_are_legal(tiling: str) -> None:
    assert tiling_problem(PAIR, H200, BLOCK_TILINGS[tiling]) is None
