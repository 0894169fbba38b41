"""A model's config gives the attention of its decode steps, or a refusal that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.test_models import config
from tuner.client.model_attention import attention_pair, qkv_attention_chain
from tuner.core.problem.presets import MODELS, LayerRun, decoder_layer
from tuner.core.problem.workload import Dtype
from tuner.errors import InvalidInput
from tuner.wire.attentions import Attention
from tuner.wire.chains import Chain

#: By hand: heads, heads of the cache, elements of a head, hidden size, dtype.
EXPECTED = {
    "llama_3_8b": (32, 8, 128, 4096, "bf16"),
    "llama_3_70b": (64, 8, 128, 8192, "bf16"),
    "mistral_7b": (32, 8, 128, 4096, "bf16"),
    "qwen2_5_7b": (28, 4, 128, 3584, "bf16"),
    "qwen3_32b": (64, 8, 128, 5120, "bf16"),
    "llama_2_13b": (40, 40, 128, 5120, "fp16"),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_models_attention_is_that_which_was_written_by_hand(name: str, tp: int) -> None:
    heads, kv_heads, head_dim, hidden, dtype = EXPECTED[name]
    found = attention_pair(config(name), sequences=16, max_length=2048, tp=tp)
    sizes = {name: found[name] for name in ("heads", "kv_heads", "head_dim", "d_out", "dtype", "window")}
    assert sizes == {
        "heads": heads // tp,
        "kv_heads": kv_heads // tp,
        "head_dim": head_dim,
        "d_out": hidden,
        "dtype": dtype,
        "window": None,
    }
    workload = Attention(**found).to_workload()
    assert (workload.num_rows, workload.tile_ops[0].n, workload.tile_ops[0].k) == (16, hidden, heads // tp * head_dim)


def test_options_of_the_config_and_of_the_command_are_the_pairs() -> None:
    def asked(max_length: int = 8192, **changes: Any) -> dict[str, Any]:
        return attention_pair(config("mistral_7b", **changes), sequences=1, max_length=max_length)

    assert asked(sliding_window=4096)["window"] == 4096
    assert asked(4096, sliding_window=4096)["window"] is None, "it hides nothing"
    assert asked(sliding_window=4096, use_sliding_window=False)["window"] is None
    assert asked(attention_bias=True)["d_out"] is None, "o_proj has a bias, and the kernel has none"
    paged = attention_pair(config("llama_3_8b"), sequences=1, max_length=512, dtype="fp16", page_tokens=16)
    assert (paged["page_tokens"], paged["dtype"]) == (16, "fp16")


@pytest.mark.parametrize(
    ("name", "changes", "tp", "words"),
    [
        ("gemma_2_9b", {}, 1, "do not all have the same plain attention"),
        ("llama_3_8b", {}, 3, "num_attention_heads 32 is no multiple of it"),
        ("llama_3_8b", {}, 16, "num_key_value_heads 8 is no multiple of it"),
        ("llama_3_8b", {"num_experts": 8}, 1, "is a mixture of experts"),
        ("llama_3_8b", {"num_attention_heads": "many"}, 1, "should be a positive integer"),
        ("llama_3_8b", {"torch_dtype": "float32"}, 1, "say which by --dtype"),
    ],
)
def test_what_has_no_attention_here_is_refused(name: str, changes: dict[str, Any], tp: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        attention_pair(config(name, **changes), sequences=1, max_length=512, tp=tp)


@pytest.mark.parametrize(
    ("name", "preset", "tp", "pages"),
    [
        ("llama_3_8b", "llama3-8b", 1, None),
        ("llama_3_70b", "llama3-70b", 8, None),
        ("llama_3_70b", "llama3-70b", 2, 16),
        ("qwen2_5_7b", "qwen2.5-7b", 4, None),
    ],
)
def test_with_what_is_in_front_it_is_the_run_of_the_preset(name: str, preset: str, tp: int, pages: int | None) -> None:
    asked: dict[str, Any] = {"sequences": 16, "max_length": 2048, "tp": tp, "page_tokens": pages}
    found = Chain(**qkv_attention_chain(config(name, rms_norm_eps=MODELS[preset].eps), **asked)).to_workload()
    assert found == decoder_layer(preset, run=LayerRun.QKV_ATTENTION, dtype=Dtype.BF16, **asked)


def test_biases_and_a_window_of_the_config_are_the_chains() -> None:
    chain = qkv_attention_chain(
        config("mistral_7b", attention_bias=True, sliding_window=256), sequences=2, max_length=512, dtype="fp16"
    )
    qkv, attention, o_proj = Chain(**chain).to_workload().ops
    assert (qkv.bias, o_proj.bias) == (True, True)  # type: ignore[union-attr]
    assert attention.form.window == 256  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "changes", "tp", "words"),
    [
        ("qwen3_32b", {}, 1, "which norms queries and keys between qkv and the attention"),
        ("llama_3_8b", {"rope_scaling": {"rope_type": "dynamic"}}, 1, "rope_scaling: is of type 'dynamic'"),
        ("llama_3_8b", {"rope_scaling": {"type": "yarn"}}, 1, "is of type 'yarn'"),
        ("llama_3_8b", {"partial_rotary_factor": 0.5}, 1, "partial_rotary_factor: is 0.5, and a kernel"),
        ("llama_3_8b", {"attention_bias": True}, 2, "the bias of o_proj would be added 2 times"),
        ("gemma_2_9b", {}, 1, "do not all have the same plain attention"),
    ],
)
def test_what_is_turned_otherwise_has_no_product_in_front(
    name: str, changes: dict[str, Any], tp: int, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        qkv_attention_chain(config(name, **changes), sequences=1, max_length=512, tp=tp)
