"""From a model's Hugging Face config to whole decoder blocks from qkv on, as one tensor-parallel rank has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.client.models import dense_language_model, ffn_shapes
from tuner.ops.attention.models import attention_pairs, qkv_attention_chains

Json = dict[str, Any]


def block_chains(config: Mapping[str, Any], *, sequences: int, tp: int = 1, **how: Any) -> list[Json]:
    """The blocks of a decode step, as `POST /jobs` takes them: norm, qkv, attention, o_proj, norm, gate_up and down,
    and the stream that both are added to. Where ranks share a block it is the two runs between its all-reduces: up to
    o_proj, and the MLP with its norm.

    Args: as `qkv_attention_chains`.

    Raises:
        InvalidInput: as `qkv_attention_chains` and `ffn_shapes`.
    """
    layers = qkv_attention_chains(config, sequences=sequences, tp=tp, **how)
    stream = "residual" if tp > 1 else "o_proj"
    mlp = _mlp(config, stream=stream, tp=tp, dtype=layers[0]["dtype"])
    if tp > 1:
        return [*layers, {"kind": "chain", "m": sequences, "dtype": layers[0]["dtype"], "ops": mlp}]
    return [{**layer, "ops": [*_added(layer["ops"]), *mlp]} for layer in layers]


def what_to_take(*, with_qkv: bool, blocks: bool) -> Callable[..., list[Json]]:
    """What reads a config, by the options of `tune-model`."""
    return block_chains if blocks else qkv_attention_chains if with_qkv else attention_pairs


def _added(ops: Sequence[Json]) -> list[Json]:
    """With the stream behind o_proj, which is the last."""
    *front, o_proj = ops
    return [*front, {**o_proj, "residual": "residual"}]


def _mlp(config: Mapping[str, Any], *, stream: str, tp: int, dtype: str) -> list[Json]:
    """Norm, gate_up and down; where `stream` is an op's it is added."""
    [shape] = ffn_shapes(config, tp=tp, dtype=dtype)
    eps = dense_language_model(config)["rms_norm_eps"]
    up = {"name": "gate_up", "source": stream, "n": shape.d_hidden, "k": shape.d_in, "bias": shape.bias}
    up |= {"gated": shape.gated, "activation": shape.activation, "norm": stream, "eps": eps}
    down = {"name": "down", "source": "gate_up", "n": shape.d_out, "k": shape.d_hidden, "bias": shape.bias}
    return [up, down | ({} if stream == "residual" else {"residual": stream})]
