"""Decoder layers of real models by name: their sizes, and their products as a chain.

o_proj adds the residual stream. gate_up normalizes the sum and multiplies the activated gate by the up projection. down
adds the stream again. qkv normalizes it for the next layer. The weights of all norms are folded into the next product's
weights.

With tensor parallelism each rank has a share of every weight. Then an all-reduce sums the outputs of o_proj, and those
of down, over the ranks, and the residual is added to the sum. No kernel reduces over ranks, so a rank runs the ops
between two all-reduces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tuner.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class DecoderModel:
    """The sizes of a decoder layer."""

    #: Columns of the residual stream.
    hidden: int
    #: Columns of the gated intermediate.
    intermediate: int
    #: Query heads, and key and value heads.
    num_heads: int
    num_kv_heads: int
    #: Columns of a head.
    head_size: int
    #: Epsilon of the layer's norms.
    eps: float
    #: Whether q, k and v add a bias.
    qkv_bias: bool = False


#: Source: the models' config.json as their authors published them.
MODELS: Mapping[str, DecoderModel] = {
    "llama3-8b": DecoderModel(
        hidden=4096, intermediate=14336, num_heads=32, num_kv_heads=8, head_size=128, eps=1e-5
    ),
    "llama3-70b": DecoderModel(
        hidden=8192, intermediate=28672, num_heads=64, num_kv_heads=8, head_size=128, eps=1e-5
    ),
    "qwen2.5-7b": DecoderModel(
        hidden=3584, intermediate=18944, num_heads=28, num_kv_heads=4, head_size=128, eps=1e-6, qkv_bias=True
    ),
}  # fmt: skip
#: Meaning of a preset's field `weights`.
STORED_WEIGHTS = "format of all weights, if they are not elements of the dtype; e4m3_g128 of fp8: scales of 128 x 128"
#: Models whose attention normalizes queries and keys.
_NORMS_QUERIES = ("qwen3",)


def shared_model(model: str, tp: int) -> DecoderModel:
    """The sizes of a model whose layer is split over `tp` ranks.

    Raises:
        InvalidInput: the model is unknown, or cannot be split over so many ranks.
    """
    if model.startswith(_NORMS_QUERIES):
        problem = f"{model} normalizes its queries and keys after qkv, which no kernel supports"
        raise InvalidInput("model", problem, f"use one of {', '.join(MODELS)}")
    sizes = MODELS.get(model)
    if sizes is None:
        raise InvalidInput("model", f"there is no model called {model!r}", f"use one of {', '.join(MODELS)}")
    shared = {"key and value heads": sizes.num_kv_heads, "intermediate columns": sizes.intermediate}
    for what, count in shared.items():
        if tp < 1 or count % tp:
            divisors = ", ".join(str(n) for n in range(1, sizes.num_kv_heads + 1) if sizes.num_kv_heads % n == 0)
            raise InvalidInput("tp", f"{tp} ranks cannot share the {count} {what} of {model}", f"use {divisors}")
    return sizes


def check_reduced(tp: int, runs: str) -> None:
    """Checks that no all-reduce is needed within the requested ops.

    Args:
        tp: number of ranks.
        runs: the runs between two all-reduces, as text.

    Raises:
        InvalidInput: there are several ranks.
    """
    if tp > 1:
        problem = f"at tp {tp} there is an all-reduce after o_proj and after down, which no kernel supports"
        raise InvalidInput("run", problem, f"use {runs}, the runs between them, or tp 1")


def block_products(
    sizes: DecoderModel, tp: int, *, in_runs: bool, stored: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """The products between two attentions on one of `tp` ranks, by name, as ops of a chain; with `in_runs`, for the
    runs between two all-reduces, after which the residual is added. `stored` has the
    fields that say how the weights of all products are stored."""
    d, inner = sizes.hidden, sizes.intermediate // tp
    heads, qkv = sizes.num_heads * sizes.head_size // tp, (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_size
    stream, summed = ("residual", "residual") if in_runs else ("o_proj", "down")
    adds, adds_again = ({}, {}) if in_runs else ({"residual": "residual"}, {"residual": stream, "is_output": True})
    bias = {"bias": True} if sizes.qkv_bias else {}
    ops: tuple[dict[str, Any], ...] = (
        {"name": "o_proj", "source": "attention", "n": d, "k": heads, **adds},
        {"name": "gate_up", "source": stream, "norm": stream, "eps": sizes.eps, "n": inner, "k": d, "gated": True,
         "activation": "silu"},
        {"name": "down", "source": "gate_up", "n": d, "k": inner, **adds_again},
        {"name": "qkv", "source": summed, "norm": summed, "eps": sizes.eps, "n": qkv // tp, "k": d, **bias},
    )  # fmt: skip
    return {op["name"]: {**op, **stored} for op in ops}
