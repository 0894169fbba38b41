"""Products that additionally write their output as an operand of later products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import H200
from tests.support.operands import GROUPED, SWAPPED, block
from tests.support.packs import make
from tuner.core.legal.legality import tiling_problem
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.asked import workload_of
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.scales.group_scale import GroupOperand
from tuner.core.problem.epilogue.scales.operand import Operand
from tuner.core.problem.epilogue.sums import Known, Sums
from tuner.core.problem.ops.op import Role
from tuner.core.problem.workload import Workload
from tuner.core.space.space import Space
from tuner.errors import InvalidInput

BLOCK = {"kind": "decoder-block", "model": "llama3-8b", "m": 16, "dtype": "fp8_e4m3"}


def test_a_block_of_8_bits_has_a_stream_of_16() -> None:
    ops = workload_of(BLOCK).tile_ops
    assert [op.source for op in ops] == ["attention", "o_proj.operand_values", "gate_up", "down.operand_values"]
    assert [op.stored_in(Dtype.FP8_E4M3) for op in ops] == [Dtype.BF16, Dtype.FP8_E4M3, Dtype.BF16, Dtype.BF16]
    assert [op.norm for op in ops] == ["", "o_proj", "", "down"]
    (residual,) = [one for one in ops[0].tensors(Dtype.FP8_E4M3) if one.name == "residual"]
    assert residual.dtype == "bf16"
    assert Workload.from_json(workload_of(BLOCK).to_json()) == workload_of(BLOCK)


def test_a_block_of_4_bit_weights_and_8_bit_activations_has_a_stream_of_16() -> None:
    """Groups scale the weights; a channel's scale remains for the static scale of an operand or intermediate."""
    workload = workload_of({**BLOCK, "weights": "int4_g128_a8"})
    ops = workload.tile_ops
    assert [op.source for op in ops] == ["attention", "o_proj.operand_values", "gate_up", "down.operand_values"]
    assert [op.stored_in(Dtype.FP8_E4M3) for op in ops] == [Dtype.BF16, Dtype.FP8_E4M3, Dtype.BF16, Dtype.BF16]
    assert {str(op.weights) for op in ops} == {"int4_g128_a8"}
    assert [[part.name for part in op.epilogue] for op in ops] == [
        ["operand"], ["channel_scale", "output_scale"], ["channel_scale", "operand"], ["channel_scale"],
    ]  # fmt: skip
    assert ops[0].row_scale
    assert workload_of({**BLOCK, "run": "mlp", "weights": "int4_g64_a8"}).tile_ops[0].row_scale
    with pytest.raises(InvalidInput, match=r"o_proj\.weights: are stored in int4_g128, which is converted to 16 bits"):
        workload_of({**BLOCK, "weights": "int4_g128"})


def test_a_block_with_scales_of_groups_has_them_for_every_operand() -> None:
    """Weights of 8 bits with a scale per 128 x 128 are multiplied as they are."""
    workload = workload_of({**BLOCK, "weights": "e4m3_g128"})
    ops = workload.tile_ops
    values = [GroupOperand.values_of(one) for one in ("o_proj", "down")]
    assert [op.source for op in ops] == ["attention", values[0], "gate_up", values[1]]
    assert [op.stored_in(Dtype.FP8_E4M3) for op in ops] == [Dtype.BF16, Dtype.FP8_E4M3, Dtype.BF16, Dtype.BF16]
    assert [(op.weights, op.row_scale, op.norm) for op in ops] == [
        (None, False, ""), (None, False, "o_proj"), (None, False, ""), (None, False, "down"),
    ]  # fmt: skip
    assert [[part.name for part in op.epilogue] for op in ops] == [
        ["block_scale", "group_operand"], ["block_scale", "group_scale"], ["block_scale", "group_operand"],
        ["block_scale"],
    ]  # fmt: skip
    read = {one.name: one.shape for op in ops for one in op.tensors(Dtype.FP8_E4M3) if one.role is Role.INPUT}
    assert read[f"{values[0]}.group_scale_factors"] == read["attention.group_scale_factors"] == (16, 32)
    assert Workload.from_json(workload.to_json()) == workload
    assert [op.source for op in workload_of({**BLOCK, "run": "mlp", "weights": "e4m3_g128"}).tile_ops] == [
        "residual", "gate_up",
    ]  # fmt: skip


def test_scales_of_groups_are_those_of_the_normed_values() -> None:
    (op, *_) = block(weights="e4m3_g128").tile_ops
    sums = np.zeros((op.m, op.n))
    sums[1, 130], sums[2, 0] = -224.0, 448e-12
    factors = {f"{op.name}.group_operand_factors": Known(values=np.full(op.n, 4.0))}
    of = Sums(xp=np, row=Dtype.FP8_E4M3.row, values=sums, error=np.zeros_like(sums), held=np.abs(sums))
    (values, _), (scales, error) = GroupOperand().made(op, of, factors).values()
    assert scales[1].tolist() == [1e-10 / 448, 2.0]
    assert values[1, 130] == -448
    assert (error <= 3e-6 * scales).all()
    assert sums[1, 130] == -224


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            lambda ops: [replace(ops[0], n=200, epilogue=(GroupOperand(),)), *ops[1:]],
            "n: is 200, but group_operand has a scale for 128 columns; use a multiple of 128",
        ),
        (lambda ops: [replace(ops[0], gated=True), *ops[1:]], r"o_proj\.gated: is true, but group_operand"),
        (
            lambda ops: [
                replace(ops[0], epilogue=(*ops[0].epilogue[:1], Operand())),
                replace(ops[1], source=Operand.values_of("o_proj")),
                *ops[2:],
            ],
            "reads o_proj.operand_values, which is stored without scales of groups; .* of a part group_operand",
        ),
        (
            lambda ops: [ops[0], replace(ops[1], epilogue=ops[1].epilogue[1:]), *ops[2:]],
            r"o_proj\.epilogue: stores scales of groups, which gate_up does not read; give gate_up the part block",
        ),
    ],
)
def test_a_block_whose_scales_do_not_meet_is_refused(changed: Callable[[Any], Any], says: str) -> None:
    workload = block(weights="e4m3_g128")
    with pytest.raises(InvalidInput, match=says):
        replace(workload, ops=tuple(changed(workload.ops)))


def test_a_space_has_kernels_of_a_block_with_scales_of_groups() -> None:
    guesses = Space(workload_of({**BLOCK, "weights": "e4m3_g128"}), H200).guesses
    assert {tile.n for one in guesses for tile in one.tiles[:3]} == {128}
    assert any(one.cluster_k > 1 for one in guesses)
    assert any(one.num_parts(0) > 1 for one in guesses)


@pytest.mark.parametrize("form", GROUPED)
def test_kernels_of_the_tests_are_legal(form: str) -> None:
    assert tiling_problem(block(weights="e4m3_g128"), H200, GROUPED[form]) is None


@pytest.mark.parametrize("run", ["layer", "mlp", "qkv"])
def test_a_layer_of_8_bits_is_refused_with_what_there_is_instead(run: str) -> None:
    layer = {"kind": "decoder-layer", "model": "llama3-8b", "sequences": 1, "max_length": 64, "run": run}
    with pytest.raises(InvalidInput, match=r"dtype: is fp8_e4m3, but the cache has 16 bits.*decoder-block"):
        workload_of({**layer, "dtype": "fp8_e4m3"})


def test_a_run_without_rotated_heads_may_have_a_scale_per_output_channel() -> None:
    layer = {"kind": "decoder-layer", "model": "llama3-8b", "sequences": 1, "max_length": 64, "dtype": "bf16"}
    ops = workload_of({**layer, "run": "mlp", "weights": "e4m3"}).tile_ops
    assert [[part.name for part in op.epilogue] for op in ops] == [["channel_scale"]] * 2


@pytest.mark.parametrize("run", ["mlp", "qkv", "o_proj"])
def test_a_run_reads_an_input_by_token(run: str) -> None:
    first = workload_of({**BLOCK, "run": run}).tile_ops[0]
    assert (first.row_scale, first.norm) == (True, "")


def test_a_bias_of_8_bits_is_refused() -> None:
    with pytest.raises(InvalidInput, match="qkv: has a bias, whose elements would have the 8 bits"):
        workload_of({**BLOCK, "model": "qwen2.5-7b"})


def test_a_reader_of_an_operand_depends_on_its_writer() -> None:
    graph = tile_graph(block(), SWAPPED, (0, 1, 2, 3))
    assert {(edge.producer, edge.consumer) for edge in graph.streams} == {(0, 1), (1, 2), (2, 3)}


def test_what_is_stored_in_16_bits_is_no_operand_itself() -> None:
    ops = block().tile_ops
    wrong = replace(ops[1], source="o_proj")
    with pytest.raises(
        InvalidInput, match=r"gate_up reads o_proj as fp8_e4m3, but it is stored in bf16; .*operand_values"
    ):
        replace(block(), ops=(ops[0], wrong, *ops[2:]))
    wrong = replace(ops[0], out_dtype=None)
    with pytest.raises(InvalidInput, match="down reads o_proj as bf16, but it is stored in fp8_e4m3"):
        replace(block(), ops=(wrong, *ops[1:]))


def test_a_manifest_lists_operands_between_ops() -> None:
    tensors = {one["name"]: one for one in make(tiling=SWAPPED, workload=block()).kernel.manifest["tensors"]}
    found = tensors["o_proj.operand_values"]
    assert (found["role"], found["dtype"], found["shape"]) == ("intermediate", "fp8_e4m3", [5, 256])
    assert tensors["residual"]["dtype"] == "bf16"
    assert "operand_factors" in tensors["o_proj.operand_factors"]["role"]


def test_a_manifest_lists_scales_of_groups_between_ops_and_of_inputs() -> None:
    workload = block(weights="e4m3_g128")
    tensors = {one["name"]: one for one in make(tiling=GROUPED["plain"], workload=workload).kernel.manifest["tensors"]}
    found = [tensors[f"{name}.group_scale_factors"] for name in ("o_proj.group_operand_values", "attention")]
    assert [(one["role"], one["dtype"], one["shape"]) for one in found] == [
        ("intermediate", "fp32", [5, 2]), ("group_scale_factors", "fp32", [5, 2]),
    ]  # fmt: skip
