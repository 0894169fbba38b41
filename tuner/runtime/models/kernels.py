"""The attentions and layers of a pack that fit a model of transformers with a static cache, made ready.

A static cache is contiguous, [sequences, KV heads, longest context, head_dim], so kernels fit one number of sequences
and one length of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.core.problem.dtype import UNSCALED
from tuner.packs.contents import Entry
from tuner.packs.read import read_pack
from tuner.packs.shapes import ChainShape, LayerShape
from tuner.runtime import torch_attention, torch_layer
from tuner.runtime.binding.native import RuntimeFailure
from tuner.runtime.models.attentions import front_of
from tuner.runtime.programs.pack import Pack

#: The ops of a layer that begins with its own qkv, by their names in a pack.
LAYER = ("qkv", "attention", "o_proj", "gate_up", "down")
#: Fields of a product that name a tensor: only whether there is one is compared, since the operator checks which.
_PARTS = ("norm", "residual")
#: Element types of kernels, and PyTorch's names of them.
_ARRAYS = {str(dtype): dtype.row.array_name for dtype in UNSCALED}


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Kernels of a pack for one part of a model."""

    #: Pairs of sequences and tokens of a cache's rows for which there are kernels.
    sizes: set[tuple[int, int]] = field(default_factory=set)
    #: Why the pack's kernels do not fit; empty if they do, or if the pack has none.
    reason: str = ""


def attentions(pack: Pack, attention: Any) -> Ready:
    """The pack's attentions with projection, registered with the operator."""
    wanted = _attention_of(attention) | {"d_out": attention.o_proj.weight.shape[0]}
    entries = [one for one in _entries(pack) if one.shape.section == "attentions" and vars(one.shape).get("d_out")]

    def ready(sequences: int, length: int, _: Entry) -> bool:
        names = {name: wanted[name] for name in ("heads", "kv_heads", "head_dim", "scale", "d_out")}
        dtype = _ARRAYS[wanted["dtype"]]
        found = pack.attention(sequences=sequences, length=length, dtype=dtype, **names)
        if found is not None:
            torch_attention.register(found)
        return found is not None

    return _ready(entries, lambda entry: _different(wanted, vars(entry.shape)), ready)


def layers(pack: Pack, layer: Any) -> Ready:
    """The pack's layers from their qkv on, registered with the operator."""
    wanted = _products_of(layer)
    all_layers = [one for one in _entries(pack) if isinstance(one.shape, LayerShape | ChainShape)]
    entries = [one for one in all_layers if isinstance(one.shape, LayerShape) and one.shape.names == LAYER]

    def differences(entry: Entry) -> list[str]:
        shape = entry.shape
        assert isinstance(shape, LayerShape)
        found = _different(_attention_of(layer.self_attn), vars(shape.launched))
        given = {op["name"]: {**op, **{name: bool(op.get(name)) for name in _PARTS}} for op in shape.ops}
        return found + [f"{name}.{one}" for name, own in wanted.items() for one in _different(own, given[name])]

    def ready(sequences: int, length: int, entry: Entry) -> bool:
        found = pack.layer(number=all_layers.index(entry), sequences=sequences, length=length, shares_sms=True)
        if found is not None:
            torch_layer.register(found)
        return found is not None

    return _ready(entries, differences, ready)


def _entries(pack: Pack) -> tuple[Entry, ...]:
    return read_pack(Path(pack.path).read_bytes()).entries


def _ready(
    entries: Iterable[Entry], differences: Callable[[Entry], list[str]], ready: Callable[[int, int, Entry], bool]
) -> Ready:
    sizes, reasons = set(), []
    for entry in entries:
        if different := differences(entry):
            reasons.append("; ".join(different))
            continue
        known = {(rung.m_hi, rung.max_length) for rung in entry.rungs if rung.kernel is not None}
        try:
            sizes |= {size for size in known if ready(*size, entry)}
        except RuntimeFailure as failure:
            reasons.append(str(failure))
        if not known:
            reasons.append("the pack names the library")
    return Ready(sizes=sizes, reason="" if sizes else min(reasons, key=len, default=""))


def _different(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The fields that differ, in words."""
    return [
        f"{name} is {here} here and {given.get(name)} in the pack"
        for name, here in wanted.items()
        if not _is_same(here, given.get(name))
    ]


def _is_same(here: Any, there: Any) -> bool:
    if isinstance(here, float) and isinstance(there, float):
        return math.isclose(here, there, rel_tol=1e-6)
    return bool(here == there) or (not here and not there)


def _attention_of(attention: Any) -> dict[str, Any]:
    """The fields of an attention's shape in a pack."""
    config = attention.config
    given = str(attention.o_proj.weight.dtype).removeprefix("torch.")
    (dtype,) = [name for name, array in _ARRAYS.items() if array == given]
    return {
        "dtype": dtype,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": attention.head_dim,
        "new_tokens": 1,
        "page_tokens": 0,
        "heads_first": True,
        "window": 0,
        "soft_cap": 0.0,
        "scale": float(attention.scaling),
    }


def _products_of(layer: Any) -> dict[str, dict[str, Any]]:
    """The fields that the products of a layer must have in a pack; n counts pairs of gate and up, and pairs of the
    heads' halves."""
    attention, mlp = layer.self_attn, layer.mlp
    front = front_of(attention)
    hidden, inner = mlp.down_proj.weight.shape
    rows, columns = sum(one.weight.shape[0] for one in front), attention.o_proj.weight.shape[1]
    return {
        "qkv": {"n": rows // 2, "k": hidden, "bias": front[0].bias is not None}
        | {"norm": True, "eps": layer.input_layernorm.variance_epsilon},
        "o_proj": {"n": hidden, "k": columns, "bias": False, "residual": True},
        "gate_up": {"n": inner, "k": hidden, "bias": False, "gated": True, "activation": "silu"}
        | {"norm": True, "eps": layer.post_attention_layernorm.variance_epsilon},
        "down": {"n": hidden, "k": inner, "bias": False, "residual": True},
    }
