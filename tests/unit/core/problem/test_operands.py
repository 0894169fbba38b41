"""Products that additionally write their output as an operand of later products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.operands import SWAPPED, block
from tests.support.packs import make
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.asked import workload_of
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload
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
    with pytest.raises(InvalidInput, match=r"o_proj\.weights: are stored in e4m3_g128, which is converted to 16 bits"):
        workload_of({**BLOCK, "weights": "e4m3_g128"})


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
