"""Decoder layers of vLLM's models with a pack's kernels: which models are supported, and by which programs.

One program computes a layer, from its attention to the next layer's qkv; or two programs do, each up to an all-reduce:
norm, qkv, attention, o_proj; and norm, gate_up, down. They compute decode steps with the numbers of sequences for which
they were built. vLLM computes all other steps with the same weights: a norm's weights are folded in place into the gate
and up projections after it. The kernels' qkv has its rows in a different order, so it is a copy, and the norm before it
is folded only into that copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tuner.errors import InvalidInput
from tuner.packs.contents import Entry
from tuner.packs.read import Pack, read_pack
from tuner.packs.shapes import ChainShape, LayerShape
from tuner.runtime import RuntimeFailure

from .attention import reasons_against_pack, served_by
from .linear import reason_against
from .log import log
from .normed_run import RUN
from .pack import opened
from .step import Program

#: The ops of a whole layer, by their names in a pack.
LAYER = ("attention", "o_proj", "gate_up", "down", "qkv")
#: The ops of a layer's two runs between all-reduces.
RUNS = (("qkv", "attention", "o_proj"), RUN)
#: Layers whose whole computation is norm, qkv, rotary embedding, attention, o_proj, norm and gated MLP, by module and
#: class of vLLM 0.26.
FAMILIES = {
    ("llama", "LlamaDecoderLayer"),  # Phi-3 as well
    ("mistral", "MistralDecoderLayer"),
    ("qwen2", "Qwen2DecoderLayer"),
}
#: Known layers that kernels cannot compute, and why.
OTHERS = {
    "GemmaDecoderLayer": "its norms multiply by 1 + their weight",
    "Gemma2DecoderLayer": "it normalizes a product's output before it is added to the residual",
    "Gemma3DecoderLayer": "it normalizes queries and keys, and a product's output before it is added to the residual",
    "Qwen3DecoderLayer": "it normalizes queries and keys between qkv and the attention",
}
#: Rotary embeddings whose angle is a position times a frequency.
ROTARIES = ("RotaryEmbedding", "Llama3RotaryEmbedding")

#: The programs of a layer, in order: one for the whole layer, or one for each of its two runs.
Programs = tuple[Program, ...]


def reasons_against_model(model: Any, vllm_config: Any) -> list[str]:
    """Why vLLM computes its layers, with any pack; empty if kernels can."""
    return [*_against_config(vllm_config), *_against_layers(model)]


def _against_config(vllm_config: Any) -> Iterator[str]:
    parallel = vllm_config.parallel_config
    if (stages := parallel.pipeline_parallel_size) > 1:
        yield f"pipeline_parallel_size is {stages}: a stage's first layer reads the output of another stage"
    if vllm_config.speculative_config is not None:
        yield "speculative decoding: its steps have several tokens of a sequence"
    if getattr(vllm_config, "kv_transfer_config", None) is not None:
        yield "kv_transfer_config: a connector waits for the cache of each layer"
    if (runner := vllm_config.model_config.runner_type) != "generate":
        yield f"its runner is {runner!r}, but kernels only decode"


def _against_layers(model: Any) -> Iterator[str]:
    inner = getattr(model, "model", None)
    layers = getattr(inner, "layers", None)
    if layers is None or not hasattr(inner, "embed_tokens") or not hasattr(inner, "norm"):
        yield f"{type(model).__name__} is not a decoder of embed_tokens, layers and norm"
        return
    for layer in layers:
        kind = type(layer)
        if (kind.__module__.rpartition(".")[2], kind.__name__) not in FAMILIES:
            known = f"it is not one of {', '.join(sorted(name for _, name in FAMILIES))}"
            yield f"{kind.__name__}: {OTHERS.get(kind.__name__, known)}"
            return
        if reason := _against_layer(layer):
            yield reason
            return


def _against_layer(layer: Any) -> str:
    attention, mlp = layer.self_attn, layer.mlp
    rotary = attention.rotary_emb
    if getattr(layer, "ada_rms_norm_t_cond", None) is not None:
        return "the norm before its MLP depends on a time step"
    if getattr(attention, "do_llama_4_scaling", False):
        return "its queries are scaled by their position"
    if getattr(attention, "qk_norm", False):
        return "its attention normalizes queries and keys"
    if type(rotary).__name__ not in ROTARIES or not rotary.is_neox_style or rotary.rotary_dim != rotary.head_size:
        return (
            f"its rotary embedding is {type(rotary).__name__}, but kernels rotate halves, with one frequency per pair"
        )
    products = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    if reason := next(filter(None, map(reason_against, products)), ""):
        return reason
    return "" if type(mlp.act_fn).__name__ == "SiluAndMul" else "its activation is not SiLU"


def fold_norms(model: Any) -> None:
    """Multiplies the weights of gate and up by those of the norm before them, in place; the norm's weights become
    ones.
    """
    with torch.no_grad():
        for layer in model.model.layers:
            norm = layer.post_attention_layernorm
            layer.mlp.gate_up_proj.weight.mul_(norm.weight)
            norm.weight.fill_(1)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A pack and a model of vLLM."""

    path: Path
    pack: Pack
    model: Any
    vllm_config: Any

    def number(self, entry: Entry) -> int:
        """The index of a layer or chain in the pack, as for `tuner.runtime.Pack.layer`."""
        return [one for one in self.pack.entries if isinstance(one.shape, LayerShape | ChainShape)].index(entry)

    def against(self, entry: Entry) -> list[str]:
        """The differences between an entry's products and the model's."""
        shape, ranks = entry.shape, self.vllm_config.parallel_config.tensor_parallel_size
        names = shape.names if isinstance(shape, LayerShape) else ("an attention alone",)
        if names == RUNS[0]:
            return [*against_products(shape, self.model), *self.against_mlps]
        if names != LAYER:
            known = " or ".join(", ".join(ops) for ops in (LAYER, RUNS[0]))
            return [f"its ops are {', '.join(names)}, but supported programs are {known}"]
        reduced = [] if ranks == 1 else [
            f"tensor_parallel_size is {ranks}: no program supports the all-reduce within a layer; "
        "tune-model --blocks makes the runs between two all-reduces"
        ]  # fmt: skip
        return [*reduced, *against_products(shape, self.model)]

    @property
    def mlps(self) -> Entry | None:
        """The run of the MLP with the fewest differences."""
        found = [one for one in self.pack.entries if getattr(one.shape, "names", ()) == RUNS[1]]
        chains = [one for one in found if isinstance(one.shape, ChainShape)]
        return min(chains, key=lambda one: len(against_products(one.shape, self.model)), default=None)

    @property
    def against_mlps(self) -> list[str]:
        """The differences between the pack's run of the MLP and the model's."""
        if self.mlps is None:
            return [f"the pack has no run of {', '.join(RUNS[1])} with a norm: tune-model --blocks makes both"]
        return against_products(self.mlps.shape, self.model)

    def loaded(self, entry: Entry) -> dict[int, Programs]:
        """The programs of a layer that support `max_model_len`, by number of sequences."""
        found = {}
        for sequences in sorted({rung.m_hi for rung in entry.rungs}):
            try:
                programs = self._programs(entry, sequences)
            except RuntimeFailure as failure:
                log.warning("tuner: layers of %d sequences keep vLLM's implementation: %s", sequences, failure)
                continue
            if all(programs):
                found[sequences] = programs
            else:
                log.info(
                    "tuner: layers of %d sequences keep vLLM's implementation: the pack names the library", sequences
                )
        return found

    def _programs(self, entry: Entry, sequences: int) -> tuple[Any, ...]:
        """The programs of an entry; an item is None if the pack uses the library for it."""
        pack, length = opened(self.path), self.vllm_config.model_config.max_model_len
        first = pack.layer(number=self.number(entry), sequences=sequences, length=length, shares_sms=True)
        if not isinstance(entry.shape, LayerShape) or entry.shape.names == LAYER or self.mlps is None:
            return (first,)
        return first, pack.layer(number=self.number(self.mlps), sequences=sequences, shares_sms=True)


def programs_of(path: Path, model: Any, vllm_config: Any) -> Mapping[int, Programs]:
    """The programs of a layer, by number of sequences in a decode step. What vLLM still computes is logged, with
    reasons.
    """
    try:
        packed = Packed(path=path, pack=read_pack(path.read_bytes()), model=model, vllm_config=vllm_config)
    except InvalidInput as error:
        log.warning("tuner: %s", error)
        return {}
    found: dict[int, Programs] = {}
    served, against_model = served_by(model, vllm_config), reasons_against_model(model, vllm_config)
    against_pack = reasons_against_pack(packed.pack, served)
    for entry in packed.pack.entries:
        if (reasons := against_pack.get(str(entry.shape))) is None:
            continue
        reasons = [*against_model, *(reasons if against_model else [*reasons, *packed.against(entry)])]
        if reasons:
            why = "; ".join(reasons)
            log.warning("tuner: attentions keep vLLM's implementation, although the pack has %s: %s", entry.shape, why)
            continue
        for sequences, programs in packed.loaded(entry).items():
            # A whole layer has fewer launches than its runs.
            found[sequences] = min(programs, found.get(sequences, programs), key=len)
    return found


def against_products(shape: Any, model: Any) -> list[str]:
    """The differences between the products of a layer or a run and the model's."""
    layer, given = model.model.layers[0], {op["name"]: op for op in shape.ops}
    wanted = _products_of(layer, is_run=shape.names != LAYER)
    return [
        f"{name}.{field} is {value} here and {given[name].get(field)} in the pack"
        for name, fields in wanted.items()
        if name in given
        for field, value in fields.items()
        if given[name].get(field, False) != value
    ]


def _products_of(layer: Any, *, is_run: bool) -> dict[str, dict[str, Any]]:
    """The fields that a pack's products must have, by name; n counts pairs of gate and up, and pairs of the heads'
    halves.
    """
    attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
    products = {"o_proj": attention.o_proj, "qkv": attention.qkv_proj}
    products |= {"gate_up": mlp.gate_up_proj, "down": mlp.down_proj}
    found: dict[str, dict[str, Any]] = {}
    for name, product in products.items():
        (rows, columns), is_pairs = product.weight.shape, name in ("gate_up", "qkv")
        found[name] = {"n": rows // 2 if is_pairs else rows, "k": columns, "bias": product.bias is not None}
    found["o_proj"] |= {"residual": not is_run, "source": "attention"}
    found["gate_up"] |= {"activation": "silu", "gated": True, "eps": norm.variance_epsilon}
    found["gate_up"] |= {"norm": "residual" if is_run else "o_proj"}
    found["down"] |= {"residual": not is_run, "source": "gate_up"}
    found["down"] |= {} if is_run else {"residual_source": "o_proj"}
    found["qkv"] |= {"norm": "residual" if is_run else "down", "eps": layer.input_layernorm.variance_epsilon}
    return found
