"""The recipe, in a manifest, of the kernel that may be launched before an attention."""

from __future__ import annotations

from typing import Any

from tuner.ops.attention.append import APPEND_THREADS, append_ctas, append_fields, append_parameter_bytes, qkv_columns
from tuner.ops.attention.op import AttentionOp

_APPEND = (
    "optional, before the attention: rotates the new tokens' queries and keys by position * frequencies, element i "
    "of a head with i + head_dim / 2; writes queries, and appends keys and values to the caches, after the "
    "programmatic wait. A row of qkv has all query heads, then the keys, then the values. A token whose page is not "
    "in the cache is not written; caches with a different number of pages pass it as the parameter's num_pages"
)


def append_recipe(op: AttentionOp, kernel: dict[str, Any], *, programmatic: bool) -> dict[str, Any]:
    """How queries and the cache's new tokens are prepared; `kernel` describes the compiled kernel. It is launched
    before the attention if a caller passes the tensors that it reads."""
    shape = op.shape
    given = (
        (f"{op.name}.qkv", [op.m, qkv_columns(shape)], str(shape.dtype)),
        (f"{op.name}.frequencies", [shape.head_dim // 2], "fp32"),
    )
    return {
        "meaning": _APPEND,
        "kernel": kernel,
        "grid": [append_ctas(shape), 1, 1],
        "block": [APPEND_THREADS, 1, 1],
        "programmatic_dependent_launch": programmatic,
        "dynamic_smem_bytes": 0,
        "parameter": {"size_bytes": append_parameter_bytes(), "fields": append_fields(op)},
        "tensors": [
            {"name": name, "shape": sizes, "dtype": dtype, "alignment_bytes": 16} for name, sizes, dtype in given
        ],
    }
