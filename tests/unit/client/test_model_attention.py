"""A model's config gives the attention of its decode steps, or a refusal that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.presets import MODELS, LayerRun, decoder_layer
from tests.unit.client.test_models import config
from tuner.core.problem.asked import workload_of
from tuner.core.problem.workload import Dtype
from tuner.errors import InvalidInput
from tuner.ops.attention.models import attention_pairs, block_chains, layer_chains, qkv_attention_chains
from tuner.ops.attention.op import Lengths
from tuner.wire.requests.pairs import Chain

#: Derived by hand: heads, heads of the cache, elements of a head, hidden size, dtype.
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
    [found] = attention_pairs(config(name), sequences=16, max_length=2048, tp=tp)
    sizes = {name: found[name] for name in ("heads", "kv_heads", "head_dim", "d_out", "dtype", "window")}
    assert sizes == {
        "heads": heads // tp,
        "kv_heads": kv_heads // tp,
        "head_dim": head_dim,
        "d_out": hidden,
        "dtype": dtype,
        "window": None,
    }
    workload = workload_of(found)
    assert (workload.batch_size, workload.tile_ops[0].n, workload.tile_ops[0].k) == (16, hidden, heads // tp * head_dim)


def test_options_of_the_config_and_of_the_command_are_the_pairs() -> None:
    def asked(name: str = "mistral_7b", max_length: int = 8192, **changes: Any) -> dict[str, Any]:
        [pair] = attention_pairs(config(name, **changes), sequences=1, max_length=max_length)
        return pair

    assert asked(sliding_window=1024)["window"] == 1024
    assert asked(max_length=4096, sliding_window=4096)["window"] is None, "it hides nothing"
    assert asked(sliding_window=1024, use_sliding_window=False)["window"] == 1024, "the family has no such switch"
    assert asked("llama_3_8b", attention_bias=True)["d_out"] is None, "o_proj has a bias, and the kernel has none"
    assert asked(attention_bias=True)["d_out"] == 4096, "the family's o_proj has none, whatever the config says"
    [paged] = attention_pairs(config("llama_3_8b"), sequences=1, max_length=512, dtype="fp16", page_tokens=16)
    assert (paged["page_tokens"], paged["dtype"]) == (16, "fp16")


def test_layers_of_several_kinds_are_several_pairs() -> None:
    def windows(max_length: int = 8192, **changes: Any) -> list[int | None]:
        pairs = attention_pairs(config("qwen2_5_7b", **changes), sequences=1, max_length=max_length)
        return [pair["window"] for pair in pairs]

    switched_on = {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 21}
    assert windows(**switched_on) == [None, 1024]
    assert windows(1024, **switched_on) == [None], "the window hides nothing"
    assert windows(**{**switched_on, "max_window_layers": 0}) == [1024]
    assert windows(sliding_window=1024) == [None], "the switch is off where it is absent"
    [sliding, full] = attention_pairs(config("gemma_2_9b"), sequences=1, max_length=8192, dtype="bf16")
    assert (sliding["window"], full["window"], full["soft_cap"], full["scale"]) == (4096, None, 50.0, None)


def test_the_scores_of_a_gemma_are_scaled_as_its_config_says() -> None:
    changes = {"head_dim": 128, "query_pre_attn_scalar": 144, "layer_types": ["full_attention"] * 42}
    [pair] = attention_pairs(config("gemma_2_9b", **changes), sequences=1, max_length=512, dtype="bf16")
    assert pair["scale"] == pytest.approx(1 / 12)
    op: Any = workload_of(pair).ops[0]
    assert op.form.soft_cap == 50.0


@pytest.mark.parametrize(
    ("name", "changes", "tp", "words"),
    [
        ("gemma_2_9b", {"use_bidirectional_attention": True}, 1, "its layers do not decode"),
        ("qwen2_5_7b", {"use_sliding_window": "yes"}, 1, "should be true or false, got 'yes'"),
        ("qwen2_5_7b", {"use_sliding_window": True, "layer_types": ["full_attention"]}, 1, "of num_hidden_layers, 28"),
        (
            "qwen2_5_7b",
            {"use_sliding_window": True, "num_hidden_layers": 1, "layer_types": ["linear_attention"]},
            1,
            "layer_types.0: is 'linear_attention'",
        ),
        ("mistral_7b", {"sliding_window": -1}, 1, "sliding_window: should be a positive integer, got -1"),
        ("mistral_7b", {"rope_scaling": "yarn"}, 1, "rope_scaling: should be an object"),
        ("llama_3_8b", {"partial_rotary_factor": "half"}, 1, "should be a positive number"),
        ("llama_3_8b", {}, 3, "num_attention_heads 32 is not a multiple of it"),
        ("llama_3_8b", {}, 16, "num_key_value_heads 8 is not a multiple of it"),
        ("llama_3_8b", {"num_experts": 8}, 1, "is a mixture of experts"),
        ("llama_3_8b", {"num_attention_heads": "many"}, 1, "should be a positive integer"),
        (
            "llama_3_8b",
            {"num_key_value_heads": 3},
            1,
            "num_key_value_heads: is 3, but num_attention_heads 32 is not a",
        ),
        ("llama_3_8b", {"num_key_value_heads": 64}, 1, "num_key_value_heads: is 64"),
        ("llama_3_8b", {"num_attention_heads": 7, "num_key_value_heads": 7}, 1, "hidden_size 4096 is not a multiple"),
        ("llama_3_8b", {"torch_dtype": "float32"}, 1, "choose one with --dtype"),
    ],
)
def test_what_has_no_attention_here_is_refused(name: str, changes: dict[str, Any], tp: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        attention_pairs(config(name, **changes), sequences=1, max_length=512, tp=tp)


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
    [chain] = qkv_attention_chains(config(name, rms_norm_eps=MODELS[preset].eps), **asked)
    assert Chain(**chain).to_workload() == decoder_layer(preset, run=LayerRun.QKV_ATTENTION, dtype=Dtype.BF16, **asked)


@pytest.mark.parametrize("pages", [None, 16])
def test_a_whole_block_is_the_presets_from_its_qkv_on(pages: int | None) -> None:
    asked: dict[str, Any] = {"sequences": 16, "max_length": 2048, "page_tokens": pages}
    [chain] = block_chains(config("llama_3_8b", rms_norm_eps=MODELS["llama3-8b"].eps), **asked)
    assert Chain(**chain).to_workload() == decoder_layer("llama3-8b", run=LayerRun.FROM_QKV, dtype=Dtype.BF16, **asked)


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize(("name", "model"), [("llama_3_8b", "llama3-8b"), ("qwen2_5_7b", "qwen2.5-7b")])
def test_a_whole_layer_is_the_presets_from_its_attention_on(name: str, model: str, heads_first: bool) -> None:
    asked: dict[str, Any] = {"sequences": 8, "max_length": 8192, "page_tokens": 16, "heads_first": heads_first}
    [chain] = layer_chains(config(name, rms_norm_eps=MODELS[model].eps), **asked)
    assert Chain(**chain).to_workload() == decoder_layer(model, dtype=Dtype.BF16, **asked)
    [chain] = layer_chains(config(name, rms_norm_eps=MODELS[model].eps), lengths="uniform", **asked)
    wanted = decoder_layer(model, dtype=Dtype.BF16, lengths=Lengths.UNIFORM, **asked)
    assert Chain(**chain).to_workload() == wanted
    [served] = layer_chains(config(name, rms_norm_eps=MODELS[model].eps), lengths="uniform", timed_length=512, **asked)
    assert Chain(**served).to_workload().launch_ops[0].timed_length == 512
    [whole] = layer_chains(config(name, rms_norm_eps=MODELS[model].eps), lengths="uniform", timed_length=8192, **asked)
    assert whole == chain
    with pytest.raises(InvalidInput, match="an all-reduce within a layer"):
        layer_chains(config(name), tp=2, **asked)


def test_ranks_share_a_block_as_the_runs_between_its_all_reduces() -> None:
    asked: dict[str, Any] = {"sequences": 16, "max_length": 2048, "tp": 8}
    runs = block_chains(config("llama_3_70b", rms_norm_eps=MODELS["llama3-70b"].eps), **asked)
    wanted = [
        decoder_layer("llama3-70b", run=run, dtype=Dtype.BF16, **asked)
        for run in (LayerRun.QKV_ATTENTION, LayerRun.MLP)
    ]
    assert [Chain(**run).to_workload() for run in runs] == wanted


def test_biases_and_a_window_of_the_config_are_the_chains() -> None:
    qkv: Any
    attention: Any
    o_proj: Any
    [chain] = qkv_attention_chains(config("llama_3_8b", attention_bias=True), sequences=2, max_length=512, dtype="fp16")
    qkv, _, o_proj = Chain(**chain).to_workload().ops
    assert (qkv.bias, o_proj.bias) == (True, True)
    changes = {"use_sliding_window": True, "sliding_window": 256, "max_window_layers": 1}
    full, sliding = qkv_attention_chains(config("qwen2_5_7b", **changes), sequences=2, max_length=512)
    qkv, attention, o_proj = Chain(**sliding).to_workload().ops
    assert (qkv.bias, o_proj.bias) == (True, False)
    assert attention.form.window == 256
    _, attention, _ = Chain(**full).to_workload().ops
    assert attention.form.window is None


@pytest.mark.parametrize(
    ("name", "changes", "tp", "words"),
    [
        ("qwen3_32b", {}, 1, "which normalizes queries and keys between qkv and the attention"),
        ("llama_3_8b", {"rope_scaling": {"rope_type": "dynamic"}}, 1, "rope_scaling: is of type 'dynamic'"),
        ("llama_3_8b", {"rope_scaling": {"type": "yarn"}}, 1, "is of type 'yarn'"),
        ("qwen2_5_7b", {"model_type": "qwen2_5_vl_text"}, 1, "rope_scaling: is of type 'mrope'"),
        ("llama_3_8b", {"partial_rotary_factor": 0.5}, 1, "partial_rotary_factor: is 0.5, but kernels"),
        ("llama_3_8b", {"attention_bias": True}, 2, "the bias of o_proj would be added 2 times"),
        ("gemma_2_9b", {}, 1, r"whose norms multiply by 1 \+ their weight"),
    ],
)
def test_what_is_turned_otherwise_has_no_product_in_front(
    name: str, changes: dict[str, Any], tp: int, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        qkv_attention_chains(config(name, **changes), sequences=1, max_length=512, tp=tp)
