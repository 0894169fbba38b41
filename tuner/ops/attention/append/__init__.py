"""The kernel before an attention that rotates new queries and keys, and writes keys and values to the cache."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.workers.source.render import config_types, inlined
from tuner.workers.source.rows import with_rows

#: The device files in the order in which one includes the other, after the first lines of config.cuh.
_FILES = ("ptx.cuh", "element.cuh", "config_append.cuh", "append.cuh")
#: Name of the kernel.
APPEND_KERNEL = "tuner_append"
#: Threads per CTA.
APPEND_THREADS = 128
#: Elements of a head that a thread processes: 8 pairs.
_ELEMENTS_OF_THREAD = 16
_ARGS = struct.Struct("<7Q7i4x")


@dataclass(frozen=True, kw_only=True)
class AppendBuffers:
    """Device addresses for a launch: `qkv` [rows, heads of queries, keys and values], `frequencies` fp32 [head_dim /
    2], `q` [rows, query heads], two caches and int32 `lengths`; for a paged cache also the int32 table and the
    number of pages, else 0."""

    qkv: int
    frequencies: int
    q: int
    keys: int
    values: int
    lengths: int
    pages: int = 0
    num_pages: int = 0


def qkv_columns(op: DecodeAttention) -> int:
    """Columns of a row of queries, keys and values."""
    return op.kv_heads * (op.query_heads + 2) * op.head_dim


def append_ctas(op: DecodeAttention) -> int:
    """CTAs of a launch: one thread per 8 pairs of all new tokens."""
    threads = op.sequences * op.new_tokens * qkv_columns(op) // _ELEMENTS_OF_THREAD
    return -(-threads // APPEND_THREADS)


def render_append(op: DecodeAttention, paged: PagedCache | None = None) -> str:
    """The source of the kernel, the same for every number of sequences, heads and tokens; `paged` describes the
    cache's pages."""
    config = f"""#define TUNER_APPEND_CONFIG
constexpr int kHeadDim = {op.head_dim};
constexpr int kAppendThreads = {APPEND_THREADS};
constexpr int kPageTokens = {paged.page_tokens if paged else 0};
[[maybe_unused]] constexpr bool kHeadsFirst = {str(paged is None or paged.heads_first).lower()};
"""
    texts = [f"// ---- config.cuh\n{config_types()}"]
    for name in _FILES:
        before, default, after = with_rows(inlined(name), op.dtype.row).partition("#ifndef TUNER_APPEND_CONFIG\n")
        if default:
            before, after = before + config, after.partition("#endif\n")[2]
        texts.append(f"// ---- {name}\n{before}{after}")
    return "\n".join(texts)


def pack_append_args(op: DecodeAttention, buffers: AppendBuffers, paged: PagedCache | None = None) -> bytes:
    """The kernel's parameter; see `AppendArgs` in append.cuh."""
    addresses = (buffers.qkv, buffers.frequencies, buffers.q, buffers.keys, buffers.values, buffers.lengths)
    sizes = (op.sequences, op.kv_heads, op.query_heads, op.new_tokens, op.max_length)
    max_pages = 0 if paged is None else paged.pages_of(op)
    return _ARGS.pack(*addresses, buffers.pages, *sizes, max_pages, buffers.num_pages)


def append_parameter_bytes() -> int:
    """Bytes of the kernel's parameter."""
    return _ARGS.size


def append_fields(op: AttentionOp) -> list[dict[str, Any]]:
    """The parameter's fields as a manifest lists them. Two tensors belong to this kernel alone; it shares the others
    with the attention.
    """
    own, shape = f"{op.name}.", op.shape
    pointers = {
        "qkv": (f"{own}qkv", "queries, keys and values of the new tokens"),
        "frequencies": (f"{own}frequencies", "fp32, radians per token for each pair"),
        "q": (op.source, "queries, rotated; written"),
        "keys": (f"{own}keys", "cache, appended to"),
        "values": (f"{own}values", "cache, appended to"),
        "lengths": (f"{own}lengths", "int32 for each sequence, new tokens included"),
        "pages": ("".join(op.operands[3:]), "int32 for each sequence and page" if op.form.paged else "null: no pages"),
    }
    fields: list[dict[str, Any]] = [
        {"name": name, "offset": 8 * index, "type": "pointer", "meaning": meaning, "tensor": tensor}
        for index, (name, (tensor, meaning)) in enumerate(pointers.items())
    ]
    names, paged = ("sequences", "kv_heads", "query_heads", "new_tokens", "max_length"), op.form.paged
    sizes = {name: getattr(shape, name) for name in names}
    sizes |= {"max_pages": paged.pages_of(shape) if paged else 0, "num_pages": paged.num_pages if paged else 0}
    for index, (name, value) in enumerate(sizes.items()):
        offset = 8 * len(pointers) + 4 * index
        fields.append({"name": name, "offset": offset, "type": "int32", "meaning": str(value), "value": value})
    return fields
