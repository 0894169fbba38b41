"""Which models use a pack's whole layers, and with which weights. Requires PyTorch, but not vLLM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.presets import LayerRun, decoder_layer
from tuner.core.problem.dtype import Dtype
from tuner.packs.contents import Entry
from tuner.packs.shapes import ChainShape, LayerShape, shape_of

torch = pytest.importorskip("torch")

#: Llama-3-8B's layers, except for their width.
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128


class SiluAndMul:
    pass


class RotaryEmbedding:
    is_neox_style, rotary_dim, head_size, base = True, HEAD_DIM, HEAD_DIM, 500_000.0


class YaRNScalingRotaryEmbedding(RotaryEmbedding):
    pass


class LlamaDecoderLayer:
    def __init__(self, **changes: Any) -> None:
        def product(rows: int, columns: int, bias: Any = None) -> Any:
            return SimpleNamespace(weight=torch.empty(rows, columns, dtype=torch.bfloat16), bias=bias)

        norm = SimpleNamespace(variance_epsilon=changes.get("eps", 1e-5))
        self.input_layernorm = self.post_attention_layernorm = norm
        self.self_attn = SimpleNamespace(
            qkv_proj=product((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, changes.get("qkv_bias")),
            o_proj=product(HIDDEN, HEADS * HEAD_DIM, changes.get("o_bias")),
            rotary_emb=changes.get("rotary", RotaryEmbedding)(),
            qk_norm=changes.get("qk_norm", False),
        )
        act_fn = SimpleNamespace() if changes.get("gelu") else SiluAndMul()
        self.mlp = SimpleNamespace(
            gate_up_proj=product(2 * INNER, HIDDEN), down_proj=product(HIDDEN, INNER), act_fn=act_fn
        )
        if method := changes.get("method"):  # which quantises what was loaded
            self.mlp.down_proj.quant_method = type(method, (), {})()
        self.self_attn.do_llama_4_scaling = changes.get("scales_queries", False)
        self.ada_rms_norm_t_cond = object() if changes.get("follows_time") else None
        if changes.get("quantised"):
            self.self_attn.o_proj.weight = torch.zeros(4, dtype=torch.int8)


LlamaDecoderLayer.__module__ = "vllm.model_executor.models.llama"


class OtherLayer(LlamaDecoderLayer):
    pass


class Qwen3DecoderLayer(LlamaDecoderLayer):
    pass


def model(kind: type = LlamaDecoderLayer, **changes: Any) -> Any:
    inner = SimpleNamespace(layers=[kind(**changes)], embed_tokens=None, norm=None)
    return SimpleNamespace(model=inner)


def config(**changes: Any) -> Any:
    parallel = SimpleNamespace(
        tensor_parallel_size=changes.get("ranks", 1), pipeline_parallel_size=changes.get("stages", 1)
    )
    return SimpleNamespace(
        parallel_config=parallel,
        speculative_config=changes.get("drafts"),
        kv_transfer_config=changes.get("connector"),
        model_config=SimpleNamespace(runner_type=changes.get("runner", "generate")),
    )


def entry(**asked: Any) -> Entry:
    workload = decoder_layer("llama3-8b", dtype=Dtype.BF16, sequences=1, max_length=64, page_tokens=16, **asked)
    return Entry(shape=shape_of(workload.to_json()), rungs=())


def test_a_llama_of_one_rank_has_no_reason_against_it() -> None:
    from tuner.vllm.layers import against_products, reasons_against_model

    assert reasons_against_model(model(), config()) == []
    assert against_products(entry().shape, model()) == []


@pytest.mark.parametrize(
    ("of_config", "of_model", "words"),
    [
        ({"stages": 2}, {}, "pipeline_parallel_size is 2"),
        ({"drafts": object()}, {}, "speculative decoding: its steps have several tokens"),
        ({"connector": object()}, {}, "kv_transfer_config: a connector waits"),
        ({"runner": "pooling"}, {}, "its runner is 'pooling'"),
        ({}, {"kind": OtherLayer}, "OtherLayer: it is not one of LlamaDecoderLayer, MistralDecoderLayer, Qwen2Decoder"),
        ({}, {"kind": Qwen3DecoderLayer}, "Qwen3DecoderLayer: it normalizes queries and keys between qkv"),
        ({}, {"qk_norm": True}, "its attention normalizes queries and keys"),
        ({}, {"rotary": YaRNScalingRotaryEmbedding}, "its rotary embedding is YaRNScalingRotaryEmbedding"),
        ({}, {"quantised": True}, "its weights are int8, but kernels support float16 and bfloat16"),
        ({}, {"method": "Fp8LinearMethod"}, "its weights are quantised, by Fp8LinearMethod"),
        ({}, {"scales_queries": True}, "its queries are scaled by their position"),
        ({}, {"follows_time": True}, "the norm before its MLP depends on a time step"),
        ({}, {"gelu": True}, "its activation is not SiLU"),
    ],
)
def test_what_a_program_cannot_compute_is_named(of_config: Any, of_model: Any, words: str) -> None:
    from tuner.vllm.layers import reasons_against_model

    (found,) = reasons_against_model(model(**of_model), config(**of_config))
    assert found.startswith(words)


def test_a_model_of_another_form_is_named() -> None:
    from tuner.vllm.layers import reasons_against_model

    assert reasons_against_model(SimpleNamespace(), config()) == [
        "SimpleNamespace is not a decoder of embed_tokens, layers and norm"
    ]


def against(asked: Entry, of_model: Any, *others: Entry, ranks: int = 1) -> list[str]:
    """How a pack's layer differs from the model's, if the pack has it."""
    from tuner.vllm.layers import Packed

    pack: Any = SimpleNamespace(entries=(asked, *others))
    return Packed(path=Path("x"), pack=pack, model=of_model, vllm_config=config(ranks=ranks)).against(asked)


def test_a_pack_of_another_model_or_division_is_named_field_by_field() -> None:
    assert sorted(against(entry(), model(eps=1e-6))) == [
        "gate_up.eps is 1e-06 here and 1e-05 in the pack",
        "qkv.eps is 1e-06 here and 1e-05 in the pack",
    ]
    biased = model(qkv_bias=torch.zeros(1), o_bias=torch.zeros(1))
    assert against(entry(), biased) == [f"{name}.bias is True here and False in the pack" for name in ("o_proj", "qkv")]
    narrow = entry()
    ops = narrow.shape.to_json()["ops"]
    ops[2]["n"] = 128
    other = replace(narrow, shape=LayerShape(dtype="bf16", ops_json=json.dumps(ops)))
    assert against(other, model()) == ["gate_up.n is 14336 here and 128 in the pack"]
    (found,) = against(entry(run=LayerRun.FROM_QKV), model())
    assert found.startswith(
        "its ops are qkv, attention, o_proj, gate_up, down, but supported programs are attention, o_proj"
    )
    (found,) = against(entry(), model(), ranks=2)
    assert found.startswith("tensor_parallel_size is 2: no program supports the all-reduce within a layer")


def test_between_all_reduces_a_layer_is_two_runs_and_each_is_held_against_the_model() -> None:
    run, mlp = entry(run=LayerRun.QKV_ATTENTION), entry(run=LayerRun.MLP)
    assert against(run, model(), mlp, ranks=2) == []
    assert against(run, model(), entry(), ranks=2) == [
        "the pack has no run of gate_up, down with a norm: tune-model --blocks makes both"
    ]
    assert sorted(against(run, model(eps=1e-6), mlp)) == [
        "gate_up.eps is 1e-06 here and 1e-05 in the pack",
        "qkv.eps is 1e-06 here and 1e-05 in the pack",
    ]
    added = ChainShape(
        dtype="bf16", ops_json=json.dumps([{**op, "residual": True} for op in mlp.shape.to_json()["ops"]])
    )
    assert against(run, model(), replace(mlp, shape=added)) == ["down.residual is False here and True in the pack"]


def test_norms_are_folded_and_rows_of_qkv_are_halves_of_heads() -> None:
    from tuner.vllm.layers import fold_norms
    from tuner.vllm.step import weights_of

    torch.manual_seed(1)
    layers = []
    for _ in range(2):
        norms = [SimpleNamespace(weight=torch.rand(8) + 0.5) for _ in range(2)]
        products = [SimpleNamespace(weight=torch.randn(rows, 8), bias=None) for rows in (12, 8, 8, 8)]
        attention = SimpleNamespace(qkv_proj=products[0], o_proj=products[1], head_dim=4)
        mlp = SimpleNamespace(gate_up_proj=products[2], down_proj=products[3])
        layers.append(
            SimpleNamespace(self_attn=attention, mlp=mlp, input_layernorm=norms[0], post_attention_layernorm=norms[1])
        )
    one = SimpleNamespace(model=SimpleNamespace(layers=layers))
    x, second = torch.randn(3, 8), layers[1]
    wanted = (x * second.input_layernorm.weight) @ second.self_attn.qkv_proj.weight.T
    up = (x * second.post_attention_layernorm.weight) @ second.mlp.gate_up_proj.weight.T
    fold_norms(one)
    assert all(bool((layer.post_attention_layernorm.weight == 1).all()) for layer in layers)
    assert torch.allclose(x @ second.mlp.gate_up_proj.weight.T, up, atol=1e-5)
    of_qkv = (x * second.input_layernorm.weight) @ second.self_attn.qkv_proj.weight.T
    assert torch.equal(of_qkv, wanted), "steps of vLLM's own read the qkv that was loaded"
    first, found = weights_of(one, copies_first=False)
    assert first.w_qkv is None, "the first layer's qkv is vLLM's own"
    assert all(one.w_qkv is not None for one in weights_of(one, copies_first=True))
    heads = torch.cat([(x @ found.w_qkv.T)[:, at : at + 6].view(3, 3, 2) for at in (0, 6)], dim=-1)
    assert torch.allclose(heads.reshape(3, 12), wanted, atol=1e-5)
    assert found.w_up.data_ptr() == second.mlp.gate_up_proj.weight.data_ptr(), "no other weight is stored twice"


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_keys_and_values_are_given_in_the_order_of_the_memory(kv_heads: int) -> None:
    from tuner.vllm.step import Step

    tokens_first = torch.zeros(3, 16, kv_heads, 2 * HEAD_DIM).transpose(1, 2)
    heads_first = torch.zeros(3, kv_heads, 16, 2 * HEAD_DIM)
    nothing = torch.zeros(0)
    step = Step(lengths=nothing, table=nothing, caches=[tokens_first, heads_first], slots=nothing)
    assert [one.shape for one in step.halves(0)] == [(3, 16, kv_heads, HEAD_DIM)] * 2
    assert [one.shape for one in step.halves(1)] == [(3, kv_heads, 16, HEAD_DIM)] * 2
