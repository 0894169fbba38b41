"""A model's config gives the shapes of its feed-forward blocks, or a refusal that names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.client.models.fields import check_fields
from tuner.client.models.models import ffn_shapes, merged
from tuner.errors import InvalidInput
from tuner.packs.shapes import Shape

CONFIGS = Path(__file__).parent / "configs"

#: Derived by hand: dtype, activation, hidden size, layers, then the columns of the intermediate on a rank of 1, 2, 4
#: and 8.
EXPECTED: dict[str, tuple[str, str, int, int, tuple[int, int, int, int]]] = {
    "llama_3_8b": ("bf16", "silu", 4096, 32, (14336, 7168, 3584, 1792)),
    "llama_3_70b": ("bf16", "silu", 8192, 80, (28672, 14336, 7168, 3584)),
    "mistral_7b": ("bf16", "silu", 4096, 32, (14336, 7168, 3584, 1792)),
    "qwen2_5_7b": ("bf16", "silu", 3584, 28, (18944, 9472, 4736, 2368)),
    "qwen3_32b": ("bf16", "silu", 5120, 64, (25600, 12800, 6400, 3200)),
    "phi_3_mini": ("bf16", "silu", 3072, 32, (8192, 4096, 2048, 1024)),
    "gemma_2_9b": ("bf16", "gelu", 3584, 42, (14336, 7168, 3584, 1792)),
    "llama_2_13b": ("fp16", "silu", 5120, 40, (13824, 6912, 3456, 1728)),
}


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("place", range(4))
def test_a_models_shapes_are_those_that_were_written_by_hand(name: str, place: int) -> None:
    dtype, activation, hidden, layers, intermediates = EXPECTED[name]
    # Gemma's config says float32, which no kernel supports, so the dtype is given.
    asked = dtype if name == "gemma_2_9b" else None
    expected = Shape(
        dtype=dtype, activation=activation, d_in=hidden, d_hidden=intermediates[place], d_out=hidden, gated=True
    )
    assert ffn_shapes(config(name), tp=2**place, dtype=asked) == {expected: layers}


def test_every_config_has_its_row() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == EXPECTED.keys()


def test_models_that_share_a_shape_have_it_once_with_the_layers_of_both() -> None:
    found = merged([ffn_shapes(config(name)) for name in ("llama_3_8b", "mistral_7b", "phi_3_mini")])
    assert list(found.values()) == [64, 32]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "num_local_experts", "mixtral is a mixture of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "num_experts", "qwen3_moe is a mixture of experts"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "n_routed_experts", "is a mixture of experts"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config", "quantised by awq"),
        ({"model_type": "gpt2"}, "model_type", "'gpt2'"),
        ({"model_type": None}, "model_type", "is missing"),
        ({"hidden_act": "gelu"}, "hidden_act", "this one is exact"),
        ({"intermediate_size": None}, "intermediate_size", "got None"),
        ({"torch_dtype": "float32"}, "torch_dtype", "is 'float32'"),
    ],
)
def test_what_has_no_shape_here_is_refused_by_its_name(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refusal:
        ffn_shapes(config("llama_3_8b", **changes))
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("changes", "tp", "residual", "words"),
    [
        ({}, 2, True, "a fused residual would be added 2 times"),
        ({"mlp_bias": True}, 4, False, r"the bias of the second product \(mlp_bias\) would be added 4 times"),
        ({}, 3, False, "intermediate_size 14336 is not a multiple"),
    ],
)
def test_what_is_wrong_on_several_ranks_is_refused(
    changes: dict[str, Any], tp: int, residual: bool, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        ffn_shapes(config("llama_3_8b", **changes), tp=tp, residual=residual)


def test_a_residual_and_a_bias_are_fused_on_one_rank() -> None:
    [shape] = ffn_shapes(config("llama_3_8b", mlp_bias=True), residual=True)
    assert (shape.bias, shape.residual) == (True, True)


def test_the_language_model_of_a_wrapped_config_is_taken_and_early_gemmas_mean_the_tanh_form() -> None:
    text = config("gemma_2_9b", model_type="gemma3_text")
    wrapped = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    assert ffn_shapes(wrapped, dtype="bf16") == ffn_shapes(text, dtype="bf16")
    early = config("gemma_2_9b", model_type="gemma", hidden_act="gelu", hidden_activation=None)
    assert ffn_shapes(early, dtype="bf16") == ffn_shapes(text, dtype="bf16")
    with pytest.raises(InvalidInput, match="quantised by bitsandbytes"):
        ffn_shapes({**wrapped, "quantization_config": {"quant_method": "bitsandbytes"}})


@pytest.mark.parametrize("whole", ["llava_next", "mistral3", "internvl"])
def test_the_language_model_of_any_wrapped_config_is_taken_if_its_family_is_supported(whole: str) -> None:
    text = config("qwen2_5_7b")
    wrapped = {"model_type": whole, "text_config": text, "vision_config": {}, "dtype": text["torch_dtype"]}
    assert ffn_shapes(wrapped) == ffn_shapes(text)
    with pytest.raises(InvalidInput, match=f"model_type: is {whole!r}, whose feed-forward block is not supported"):
        ffn_shapes({**wrapped, "text_config": {**text, "model_type": "mllama_text_model"}})


@pytest.mark.parametrize("whole", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_language_model_of_a_qwen_with_images_is_taken_also_from_older_configs(whole: str) -> None:
    text = config("qwen2_5_7b")
    inner = {name: value for name, value in text.items() if name != "model_type"}
    named = {"model_type": whole, "vision_config": {"hidden_size": 64, "intermediate_size": 128}}
    assert ffn_shapes({**named, "text_config": {**inner, "model_type": f"{whole}_text"}}) == ffn_shapes(text)
    assert ffn_shapes({**named, "text_config": inner}) == ffn_shapes(text)
    flat = {**named, **inner}
    if whole == "qwen3_vl":  # newer than such configs
        with pytest.raises(InvalidInput, match="model_type: is 'qwen3_vl'"):
            ffn_shapes(flat)
        return
    assert ffn_shapes(flat) == ffn_shapes(text)
    assert check_fields({**flat, "num_hiden_layers": 3}, with_context=False) == []
    for given, field in ((flat, "hidden_size"), ({**named, "text_config": inner}, "text_config.hidden_size")):
        less = {name: value for name, value in given.items() if name != "hidden_size"}
        less |= {"text_config": {"intermediate_size": 1}} if "text_config" in given else {}
        with pytest.raises(InvalidInput, match=rf"^{field}: is missing"):
            check_fields(less, with_context=False)
