"""Whole decoder layers of vLLM's models by a pack's kernels: in which models, by which programs, with which weights.

A program is a layer from its attention on to the next layer's qkv. It computes decode steps of as many sequences as it
was made for. All other steps stay vLLM's, with the same weights: the norms' are folded into the products behind them in
place. The kernels' qkv has its rows in another order, so it is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tuner.errors import InvalidInput
from tuner.packs.contents import Entry
from tuner.packs.read import read_pack
from tuner.packs.shapes import LayerShape
from tuner.runtime import RuntimeFailure
from tuner.runtime.programs.program import Program
from tuner.runtime.pytorch.formula import halves_first

from .attention import reasons_against_pack, served_by
from .log import log
from .pack import opened

#: The ops of a program, as a pack names them.
OPS = ("attention", "o_proj", "gate_up", "down", "qkv")
#: Layers whose whole computation is norm, qkv, rotary embedding, attention, o_proj, norm and gated MLP, by module and
#: class of vLLM 0.26.
FAMILIES = {("llama", "LlamaDecoderLayer"), ("qwen2", "Qwen2DecoderLayer")}
#: Rotary embeddings whose angle is a position times a frequency.
ROTARIES = ("RotaryEmbedding", "Llama3RotaryEmbedding")


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Of a layer, as its program reads them, norms folded in. All but the first two are vLLM's own."""

    #: First halves of all heads, then second halves; None of the first layer, whose qkv stays vLLM's.
    w_qkv: torch.Tensor | None
    b_qkv: torch.Tensor | None
    w_o: torch.Tensor
    #: Gate, then up.
    w_up: torch.Tensor
    w_down: torch.Tensor


def reasons_against_model(model: Any, vllm_config: Any) -> list[str]:
    """Why its layers stay vLLM's own, whatever the pack; none where they need not."""
    return [*_against_config(vllm_config), *_against_layers(model)]


def _against_config(vllm_config: Any) -> Iterator[str]:
    parallel = vllm_config.parallel_config
    if (ranks := parallel.tensor_parallel_size) > 1:
        yield f"tensor_parallel_size is {ranks}: an all-reduce stands within a layer, and no kernel here does one"
    if (stages := parallel.pipeline_parallel_size) > 1:
        yield f"pipeline_parallel_size is {stages}: a stage's layers begin with another one's"
    if vllm_config.speculative_config is not None:
        yield "speculative decoding: its steps have several tokens of a sequence"
    if getattr(vllm_config, "kv_transfer_config", None) is not None:
        yield "kv_transfer_config: a connector waits for each layer's cache"
    if (runner := vllm_config.model_config.runner_type) != "generate":
        yield f"its runner is {runner!r}, and kernels here decode"


def _against_layers(model: Any) -> Iterator[str]:
    inner = getattr(model, "model", None)
    layers = getattr(inner, "layers", None)
    if layers is None or not hasattr(inner, "embed_tokens") or not hasattr(inner, "norm"):
        yield f"{type(model).__name__} is no decoder of embed_tokens, layers and norm"
        return
    for layer in layers:
        kind = type(layer)
        if (kind.__module__.rpartition(".")[2], kind.__name__) not in FAMILIES:
            yield f"{kind.__name__} is none of {', '.join(sorted(name for _, name in FAMILIES))}"
            return
        if reason := _against_layer(layer):
            yield reason
            return


def _against_layer(layer: Any) -> str:
    attention, mlp = layer.self_attn, layer.mlp
    rotary = attention.rotary_emb
    if getattr(attention, "qk_norm", False):
        return "its attention norms queries and keys"
    if type(rotary).__name__ not in ROTARIES or not rotary.is_neox_style or rotary.rotary_dim != rotary.head_size:
        return f"its rotary embedding is {type(rotary).__name__}, and kernels here turn halves by one frequency a pair"
    products = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    if any(getattr(one, "weight", None) is None or not one.weight.is_floating_point() for one in products):
        return "its weights are quantised"
    return "" if type(mlp.act_fn).__name__ == "SiluAndMul" else "its activation is not SiLU"


def fold_norms(model: Any) -> None:
    """Multiplies weights of qkv and of gate and up by the norm's in front of them, which become ones. In place."""
    with torch.no_grad():
        for layer in model.model.layers:
            for norm, product in (
                (layer.input_layernorm, layer.self_attn.qkv_proj),
                (layer.post_attention_layernorm, layer.mlp.gate_up_proj),
            ):
                product.weight.mul_(norm.weight)
                norm.weight.fill_(1)


def weights_of(model: Any) -> list[LayerWeights]:
    """Of each layer, once norms are folded and vLLM has laid the weights out. It copies all qkv but the first."""
    found = []
    for place, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        bias, is_copied = getattr(attention.qkv_proj, "bias", None), place > 0
        found.append(
            LayerWeights(
                w_qkv=halves_first(attention.qkv_proj.weight.data, attention.head_dim) if is_copied else None,
                b_qkv=None if bias is None or not is_copied else halves_first(bias.data, attention.head_dim),
                w_o=attention.o_proj.weight.data,
                w_up=mlp.gate_up_proj.weight.data,
                w_down=mlp.down_proj.weight.data,
            )
        )
    return found


def frequencies_of(model: Any) -> torch.Tensor:
    """Radians a token of each pair of a head, fp32, where the weights are."""
    attention = model.model.layers[0].self_attn
    rotary = attention.rotary_emb
    return rotary._compute_inv_freq(rotary.base).float().to(attention.qkv_proj.weight.device).contiguous()


def programs_of(path: Path, model: Any, vllm_config: Any) -> Mapping[int, Program]:
    """By sequences of a decode step, what computes a layer of it. What stays vLLM's own is logged, with the reasons."""
    try:
        pack = read_pack(path.read_bytes())
    except InvalidInput as error:
        log.warning("tuner: %s", error)
        return {}
    found: dict[int, Program] = {}
    served, against_model = served_by(model, vllm_config), reasons_against_model(model, vllm_config)
    against_pack = reasons_against_pack(pack, served)
    for entry in pack.entries:
        if (reasons := against_pack.get(str(entry.shape))) is None:
            continue
        reasons = [*against_model, *(reasons if against_model else [*reasons, *_against_entry(entry, model)])]
        if reasons:
            why = "; ".join(reasons)
            log.warning("tuner: attentions stay vLLM's own, where the pack has %s: %s", entry.shape, why)
        else:
            found |= _loaded(path, entry, vllm_config.model_config.max_model_len)
    return found


def _against_entry(entry: Entry, model: Any) -> list[str]:
    """What its products do otherwise than the model's."""
    shape = entry.shape
    if not isinstance(shape, LayerShape) or shape.names != OPS:
        names = ", ".join(getattr(shape, "names", ("an attention alone",)))
        return [f"its ops are {names}, and a program here is {', '.join(OPS)}"]
    layer, given = model.model.layers[0], {op["name"]: op for op in shape.ops}
    return [
        f"{name}.{field} is {wanted} here and {given[name].get(field)} in the pack"
        for name, fields in _products_of(layer).items()
        for field, wanted in fields.items()
        if given[name].get(field, False) != wanted
    ]


def _products_of(layer: Any) -> dict[str, dict[str, Any]]:
    """Of a layer's products what a pack's have to be, by name; n counts pairs of gate and up, and of heads' halves."""
    attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
    products = {"o_proj": attention.o_proj, "qkv": attention.qkv_proj}
    products |= {"gate_up": mlp.gate_up_proj, "down": mlp.down_proj}
    found: dict[str, dict[str, Any]] = {}
    for name, product in products.items():
        (rows, columns), is_pairs = product.weight.shape, name in ("gate_up", "qkv")
        found[name] = {"n": rows // 2 if is_pairs else rows, "k": columns, "bias": product.bias is not None}
    found["o_proj"] |= {"residual": True, "source": "attention"}
    found["gate_up"] |= {"activation": "silu", "gated": True, "norm": "o_proj", "eps": norm.variance_epsilon}
    found["down"] |= {"residual": True, "residual_source": "o_proj", "source": "gate_up"}
    found["qkv"] |= {"norm": "down", "eps": layer.input_layernorm.variance_epsilon}
    return found


def _loaded(path: Path, entry: Entry, length: int) -> dict[int, Program]:
    """The programs of a layer that reach so many tokens."""
    found = {}
    for sequences in sorted({rung.m_hi for rung in entry.rungs if rung.kernel is not None}):
        try:
            program = opened(path).layer(*OPS, sequences=sequences, length=length, shares_sms=True)
        except RuntimeFailure as failure:
            log.warning("tuner: layers of %d sequences stay vLLM's own: %s", sequences, failure)
            continue
        if program is not None:
            found[sequences] = program
    return found
