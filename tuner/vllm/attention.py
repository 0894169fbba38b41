"""Whether a pack's kernels can replace vLLM's attention, given vLLM's cache layout and its attention's features, and if
not, the reasons.

Source: `get_kv_cache_shape` and `get_kv_cache_stride_order` of the backends of vLLM 0.26. Their caches are [blocks, KV
heads, tokens of a block, 2 * head_dim], in memory with tokens before heads (NHD) unless VLLM_KV_CACHE_LAYOUT is HND.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.dtype import UNSCALED
from tuner.ops.attention.pack.shape import AttentionShape
from tuner.packs.contents import Rung
from tuner.packs.read import Pack
from tuner.packs.shapes import AnyShape

from .linear import DTYPES

#: Backends whose caches have a token's keys and values side by side, keys first.
PACKED_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")
#: Those whose step metadata has lengths and tables in the form that our kernels read.
TABLED_BACKENDS = ("FLASH_ATTN", "TRITON_ATTN")
#: Elements of one TMA copy; the distance between lines is a multiple of it.
LINE = 64


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Strides of a cache, in elements."""

    #: From a block, or page, to the next one.
    block: int
    #: From a KV head to the next one.
    head: int
    #: From a token to the next one.
    token: int


def dense(kv_heads: int, page_tokens: int, line: int, *, heads_first: bool) -> Steps:
    """The strides of pages without gaps. `line` is the number of elements per head and token: `head_dim` if keys and
    values are separate, as in our kernels, and twice as many if vLLM packs both."""
    head, token = (page_tokens * line, line) if heads_first else (line, kv_heads * line)
    return Steps(block=kv_heads * page_tokens * line, head=head, token=token)


@dataclass(frozen=True, kw_only=True)
class Served:
    """An attention layer as vLLM runs it."""

    #: The shape as in a pack. Pages are vLLM's blocks; new tokens are those of a step, with and without drafts.
    shape: AttentionShape
    #: The strides of keys, and of values.
    steps: Steps
    #: `max_model_len`: tokens of the longest sequence.
    max_length: int
    #: Its features that our kernels do not support, as text.
    others: tuple[str, ...]

    @classmethod
    def of(cls, attention: Any, vllm_config: Any) -> Served:
        """The attention of a vLLM module `Attention`, on this rank."""
        config, cache, backend = vllm_config.model_config, vllm_config.cache_config, attention.attn_backend
        kv_heads, head_dim, tokens = attention.num_kv_heads, attention.head_size, cache.block_size
        shape = backend.get_kv_cache_shape(1, tokens, kv_heads, head_dim, cache_dtype_str=attention.kv_cache_dtype)
        steps = _steps(shape, _stride_order(backend, len(shape)))
        drafts = getattr(vllm_config, "num_speculative_tokens", 0)
        impl = attention.impl
        return cls(
            shape=AttentionShape(
                dtype=str(DTYPES.get(str(config.dtype).removeprefix("torch."), config.dtype)),
                heads=attention.num_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                new_tokens=1 + drafts,
                page_tokens=tokens,
                heads_first=steps.head > steps.token,  # a head's tokens are first if they are contiguous
                window=attention.sliding_window or 0,
                soft_cap=float(getattr(impl, "logits_soft_cap", 0) or 0),
                scale=float(impl.scale),
                d_out=0,
            ),
            steps=steps,
            max_length=config.max_model_len,
            others=tuple(_others(attention, vllm_config)),
        )


def _stride_order(backend: Any, rank: int) -> tuple[int, ...]:
    """A cache's dimensions, from the largest stride to the smallest."""
    try:
        return tuple(backend.get_kv_cache_stride_order())
    except (AttributeError, NotImplementedError):
        return tuple(range(rank))


def _steps(shape: Sequence[int], order: Sequence[int]) -> Steps:
    """The strides of a cache of [blocks, KV heads, tokens, elements]."""
    steps, step = [0] * len(shape), 1
    for dim in reversed(order):
        steps[dim] = step
        step *= shape[dim]
    block, head, token, *_ = steps
    return Steps(block=block, head=head, token=token)


def _others(attention: Any, vllm_config: Any) -> Iterator[str]:
    backend = attention.attn_backend.get_name()
    if backend not in PACKED_BACKENDS:
        yield f"the cache layout of backend {backend} is not supported; supported are {', '.join(PACKED_BACKENDS)}"
    elif backend not in TABLED_BACKENDS:
        yield f"backend {backend} has no block table; use --attention-backend FLASH_ATTN"
    if attention.kv_cache_dtype not in {"auto", *DTYPES}:
        yield f"kv_cache_dtype is {attention.kv_cache_dtype}, but kernels read {' or '.join(UNSCALED)}"
    if getattr(attention, "has_sink", False):
        yield "its heads have sinks"
    if getattr(attention.impl, "alibi_slopes", None) is not None:
        yield "its scores have slopes (ALiBi)"
    if attention.attn_type != "decoder":  # a member of vLLM's enumeration of strings
        yield f"its type is {attention.attn_type}, but kernels only decode"
    if attention.kv_sharing_target_layer_name is not None:
        yield f"it reads the cache of {attention.kv_sharing_target_layer_name}"
    if (ranks := vllm_config.parallel_config.decode_context_parallel_size) > 1:
        yield f"decode_context_parallel_size is {ranks}: a rank has a part of each context"


#: Fields of a shape that have a different name in vLLM, and that name.
_NAMES = {
    "kv_heads": "KV heads",
    "page_tokens": "block_size",
    "heads_first": "VLLM_KV_CACHE_LAYOUT",
    "window": "sliding_window",
    "soft_cap": "logits_soft_cap",
    "new_tokens": "tokens of a sequence in a step",
}
_LAYOUTS = {True: "HND", False: "NHD"}


def reasons_against(served: Served, ours: AttentionShape, rungs: Sequence[Rung]) -> list[str]:
    """Why kernels with this shape and table cannot compute it; empty if they can."""
    found = list(served.others)
    for name, here in vars(served.shape).items():
        wanted = getattr(ours, name)
        if name == "d_out" or here == wanted:
            continue
        words = [str(_LAYOUTS[value] if name == "heads_first" else value) for value in (here, wanted)]
        if name == "page_tokens" and not wanted:
            words[1] = "none, since its cache is contiguous,"
        found.append(f"{_NAMES.get(name, name)} is {words[0]} here and {words[1]} in the pack")
    reach = max((rung.max_length for rung in rungs if rung.kernel is not None), default=0)
    if reach < served.max_length:
        problem = f"max_model_len is {served.max_length}, but the pack's kernels support at most {reach} tokens"
        found.append(f"{problem}: a full graph cannot choose by length")
    return found + _against_steps(served)


def _against_steps(served: Served) -> list[str]:
    """Gaps between lines (one head and token each) are allowed, as when a token's keys and values are adjacent."""
    shape, steps = served.shape, served.steps
    line = steps.token if shape.heads_first else steps.head
    dense_pages = dense(shape.kv_heads, shape.page_tokens, line, heads_first=shape.heads_first)
    if (steps.head, steps.token) == (dense_pages.head, dense_pages.token) and line % LINE == 0:
        return []
    has = f"the cache has strides of {steps.head} elements between heads and {steps.token} between tokens"
    return [f"{has}; kernels need {shape.head_dim} or another multiple of {LINE} for a line, and no other gaps"]


def served_by(model: Any, vllm_config: Any) -> list[Served]:
    """The attentions of a model, without duplicates."""
    attentions = [one for one in model.modules() if hasattr(one, "attn_backend") and hasattr(one, "impl")]
    return list(dict.fromkeys(Served.of(one, vllm_config) for one in attentions))


def _attention_of(shape: AnyShape) -> AttentionShape | None:
    """The shape itself if it is an attention, or the shape of a layer's attention; None if there is none."""
    return shape if isinstance(shape, AttentionShape) else getattr(shape, "launched", None)


def reasons_against_pack(pack: Pack, served: Sequence[Served]) -> dict[str, list[str]]:
    """For each attention and layer of a pack: why its kernels support none of these attentions, as text. The reasons
    are those of the most similar attention."""
    found = {}
    for entry in pack.entries:
        shape = _attention_of(entry.shape)
        if shape is not None:
            against = [reasons_against(one, shape, entry.rungs) for one in served]
            found[str(entry.shape)] = min(against, key=len, default=["the model has no attention layer"])
    return found
