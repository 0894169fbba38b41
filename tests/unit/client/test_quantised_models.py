"""Configs of quantised models become blocks that jobs accept, or are refused before anything is submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.problem.test_quantisation import AWQ, CHANNELS, DEEPSEEK, FP8, GPTQ, INT4, TOKENS, compressed
from tuner.client.models.models import ffn_blocks, ffn_shapes
from tuner.client.models.quantised import Block
from tuner.core.problem.asked import pair_of, workload_of
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme
from tuner.packs.shapes import Shape

CONFIGS = Path(__file__).parent / "configs"


def blocks(quantised: Any, name: str = "llama_3_8b", how: dict[str, Any] | None = None, **changes: Any) -> Any:
    config = {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes, "quantization_config": quantised}
    return ffn_blocks(config, **(how or {}))


def workload(block: Block, m: int = 16) -> Workload:
    return workload_of(block.pair(m))


@pytest.mark.parametrize(
    ("quantised", "scheme"),
    [
        (GPTQ, Scheme.INT4),
        (AWQ, Scheme.INT4_ZP),
        (compressed(CHANNELS), Scheme.W8A16),
        (DEEPSEEK, Scheme.W8A16_BLOCK),
        (FP8, Scheme.TENSOR),
        (compressed(CHANNELS, TOKENS), Scheme.TOKEN),
        (compressed(INT4, TOKENS), Scheme.W4A8),
    ],
)
def test_a_block_is_what_the_scheme_of_that_name_is(quantised: dict[str, Any], scheme: Scheme) -> None:
    [(block, layers)] = blocks(quantised).items()
    asked = QuantisedFfn(m=16, d_in=4096, d_hidden=14336, d_out=4096, scheme=scheme).to_workload()
    assert (layers, workload(block)) == (32, asked)


def test_activations_in_groups_have_8_bits_on_request() -> None:
    [block] = blocks(DEEPSEEK, how={"fp8_groups": True})
    asked = QuantisedFfn(m=16, d_in=4096, d_hidden=14336, d_out=4096, scheme=Scheme.BLOCK).to_workload()
    assert workload(block) == asked
    assert "fp8 activations in groups of 128" in str(block)
    with pytest.raises(InvalidInput, match=r"n is 14272, but block_scale has a scale for 128 x 128 weights"):
        blocks(DEEPSEEK, how={"fp8_groups": True}, intermediate_size=14272)


def test_the_intermediate_of_activations_by_token_is_in_groups_on_request() -> None:
    """Its factors are then computed, which a checkpoint with dynamic activations cannot contain."""
    [block] = blocks(compressed(CHANNELS, TOKENS), how={"fp8_groups": True})
    asked = QuantisedFfn(m=16, d_in=4096, d_hidden=14336, d_out=4096, scheme=Scheme.TOKEN_GROUPS).to_workload()
    assert workload(block) == asked
    assert str(block).endswith("fp8 activations by token, its intermediate in groups of 128")
    [static] = blocks(FP8, how={"fp8_groups": True})
    assert static.pair(1)["scheme"] == "tensor"
    with pytest.raises(InvalidInput, match=r"says .*: up.n is 14272, but group_scale has a scale for 128 columns"):
        blocks(compressed(CHANNELS, TOKENS), how={"fp8_groups": True}, intermediate_size=14272)


def test_a_checkpoint_in_fp16_has_a_kernel_in_fp16() -> None:
    [block] = blocks(GPTQ, torch_dtype="float16")
    assert block.pair(4)["dtype"] == "fp16"
    assert str(block) == "fp16 4096 -> 14336 -> 4096 silu gated, int4_g128 weights, 16-bit activations"


def test_layers_that_are_left_as_they_were_keep_their_shape() -> None:
    found = blocks(GPTQ | {"dynamic": {r"-:.*layers\.(0|31)\.mlp.*": {}}})
    assert {type(one): count for one, count in found.items()} == {Shape: 2, Block: 30}
    assert [one for one in found if isinstance(one, Shape)] == list(ffn_shapes(json_of("llama_3_8b")))


def json_of(name: str) -> dict[str, Any]:
    return dict(json.loads((CONFIGS / f"{name}.json").read_text()))


def test_a_block_in_other_groups_is_of_these() -> None:
    [block] = blocks(GPTQ | {"group_size": 64})
    assert {str(op.weights) for op in workload(block).tile_ops} == {"int4_g64"}
    with pytest.raises(InvalidInput, match="weights: are int4_g64, and scheme w8a16 stores weights in e4m3"):
        workload_of({**block.pair(16), "scheme": "w8a16"})
    with pytest.raises(InvalidInput, match="weights: are e4m3_g128, and scheme w8a16 stores weights in e4m3"):
        workload_of({**block.pair(16), "scheme": "w8a16", "weights": "e4m3_g128"})
    with pytest.raises(InvalidInput, match="weights: are int4_g64, and scheme token stores weights in fp8_e4m3"):
        workload_of({**block.pair(16), "scheme": "token", "dtype": None})
    with pytest.raises(InvalidInput, match="residual: is set"):
        blocks(GPTQ, how={"residual": True})


def test_ranks_cut_rows_of_weights_between_groups() -> None:
    [block] = blocks(GPTQ, how={"tp": 4})
    assert block.shape.d_hidden == 3584
    with pytest.raises(InvalidInput, match=r"quantization_config: says int4_g128.*: down.k is 18\d\d") as refused:
        blocks(GPTQ, "qwen2_5_7b", how={"tp": 10}, intermediate_size=18880)
    assert "use a multiple of 256" in refused.value.remedy


@pytest.mark.parametrize(
    ("quantised", "changes", "words"),
    [
        (DEEPSEEK, {"intermediate_size": 14464}, "says e4m3_g128 weights.*: down.k is 14464"),
        (GPTQ, {"mlp_bias": True}, "mlp_bias: is set, but kernels with quantised weights do not add it"),
        (GPTQ, {"num_local_experts": 8}, "a mixture of experts"),
        (GPTQ | {"dynamic": {r".*down_proj": {"group_size": 64}}}, {}, "has mixed formats in one layer"),
        (compressed(INT4, ignore=["re:.*down_proj"]), {}, "down_proj not quantised; use a checkpoint"),
        ("gptq", {}, "is 'gptq', not an object"),
        (FP8, {"torch_dtype": "float32"}, "torch_dtype: is 'float32'"),
    ],
)
def test_what_has_no_kernel_is_refused(quantised: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        blocks(quantised, **changes)


def test_an_intermediate_in_16_bits_after_fp8_products_is_refused_by_both_formats() -> None:
    [first], [second] = (one["config_groups"].values() for one in (compressed(CHANNELS, TOKENS), compressed(CHANNELS)))
    groups = {
        "fp8": {**first, "targets": ["re:.*gate_proj", "re:.*up_proj"]},
        "weights": {**second, "targets": ["re:.*down_proj"]},
    }
    words = "up_proj e4m3 weights, fp8 activations by token, .*down_proj e4m3 weights, 16-bit activations; use a check"
    with pytest.raises(InvalidInput, match=words):
        blocks(compressed(CHANNELS, config_groups=groups))


def test_phi_has_gate_and_up_in_one_module() -> None:
    [(block, layers)] = blocks(AWQ | {"modules_to_not_convert": ["gate_proj"]}, "phi_3_mini").items()
    assert (isinstance(block, Block), layers) == (True, 32)


def test_a_block_of_quantised_weights_is_the_same_with_another_format() -> None:
    block = {"kind": "decoder-block", "model": "llama3-8b", "m": 16, "dtype": "bf16"}
    plain, stored = (workload_of({**block, **more}) for more in ({}, {"weights": "int4_g128"}))
    assert [{**op, "weights": "int4_g128"} for op in plain.to_json()["ops"]] == stored.to_json()["ops"]
    assert workload_of(pair_of(stored)) == stored
    with pytest.raises(InvalidInput, match="weights"):
        workload_of({**block, "weights": "int5_g128"})
    with pytest.raises(InvalidInput, match="which is converted to 16 bits, but the dtype is fp8_e4m3"):
        workload_of({**block, "weights": "int4_g128", "dtype": "fp8_e4m3"})


def test_weights_without_groups_have_a_scale_per_channel() -> None:
    block = {"kind": "decoder-block", "model": "llama3-8b", "m": 16, "dtype": "bf16", "weights": "e4m3"}
    assert [op["epilogue"] for op in workload_of(block).to_json()["ops"]] == 4 * [[{"part": "channel_scale"}]]


def test_a_layer_of_quantised_weights_is_the_same_with_another_format() -> None:
    layer = {"kind": "decoder-layer", "model": "qwen2.5-7b", "sequences": 4, "max_length": 2048, "dtype": "bf16"}
    plain, stored = (workload_of({**layer, **more}).to_json()["ops"] for more in ({}, {"weights": "int4_g128"}))
    assert [op if op.get("op") else {**op, "weights": "int4_g128"} for op in plain] == stored
    with pytest.raises(InvalidInput, match="weights: are e4m3, which has a scale per output channel: qkv is rotated"):
        workload_of({**layer, "weights": "e4m3"})
    assert workload_of({**layer, "weights": "e4m3", "rotary": False}).tile_ops[-1].epilogue
