"""The library's side of an attention without the vendor's fused kernel: batched products by cuBLASLt, with a softmax.

This is used if PyTorch is not installed, and if scores have a soft cap, which PyTorch's fused kernels do not support.
The result says so. The products read the cache once, as any attention does, but there are three launches, and they read
all of the cache, whatever the lengths and the window. Pages are sorted before the timing.
"""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.ops.attention.card.data import in_order
from tuner.ops.attention.op import AttentionOp
from tuner.workers.gpu.library.op_library import OpLibrary
from tuner.workers.gpu.library.vendor import BatchedShape, Vendor
from tuner.workers.gpu.tensors.op_data import Arrays, from_bits
from tuner.workers.gpu.tensors.outputs import bits_type
from tuner.workers.source.tools import kernel_of

#: The recipe's description of these launches.
NO_FUSED_ATTENTION = (
    "no vendor's fused attention was available, since {why}: cuBLASLt's batched products with our own softmax"
)
NO_TORCH, NO_CAP = "PyTorch is not installed", "PyTorch's fused attentions have no soft cap of scores"
IN_ORDER = ", over pages that were sorted beforehand, untimed"
_THREADS = 256


class AttentionProducts(OpLibrary):
    """Attention in three launches: a batched product for the scores, a softmax, a batched product with the values."""

    def __init__(self, vendor: Vendor, op: AttentionOp, dtype: Dtype, tools: Any) -> None:
        """`tools` has the kernel `tuner_softmax`.

        Raises:
            WorkerError: the library offers no algorithm.
        """
        self._op, self._dtype, shape = op, dtype, op.shape
        self._softmax = tools.get_function(kernel_of("tuner_softmax", dtype))
        batch, columns, tokens = shape.sequences * shape.kv_heads, shape.columns, shape.max_length
        of_cache = {"batch": batch, "x_stride": tokens * shape.head_dim}
        scores = BatchedShape(m=tokens, n=columns, k=shape.head_dim, is_transposed=True, is_wide=True, **of_cache)
        sums = BatchedShape(m=shape.head_dim, n=columns, k=tokens, is_transposed=False, is_wide=False, **of_cache)
        self._scores, self._sums = vendor.batched(dtype, scores), vendor.batched(dtype, sums)
        #: The same choice for both batched products.
        self.num_choices = min(self._scores.num_algorithms, self._sums.num_algorithms)
        self._workspace = cupy.empty(vendor.workspace_bytes, dtype=cupy.uint8)
        self._wide = cupy.empty((batch, columns, tokens), dtype=cupy.float32)
        self._weights = cupy.empty((batch, columns, tokens), dtype=bits_type(dtype))
        #: Queries, and results, by KV head: the same layout if there is one new token.
        by_head = (shape.sequences, shape.kv_heads, shape.new_tokens, shape.query_heads, shape.head_dim)
        self._gathered = [cupy.empty(by_head, dtype=bits_type(dtype)) for _ in range(2 * (shape.new_tokens > 1))]
        #: Sorted keys and values, by the address of each timed slot's lengths.
        self._in_order: dict[int, tuple[Any, Any]] = {}

    def make_ready(self, arrays: Arrays) -> None:
        """Prepares timed runs over these arrays, whose caches have no NaN: pages are sorted once."""
        self._in_order[arrays[self._op.operands[2]].data.ptr] = in_order(self._op, arrays)

    def recipe(self) -> str:
        """How this calls the library."""
        form = self._op.form
        found = NO_FUSED_ATTENTION.format(why=NO_TORCH if form.soft_cap is None else NO_CAP)
        return found + ("" if form.paged is None else IN_ORDER)

    def enqueue(self, arrays: Arrays, stream: int) -> None:
        """One run."""
        op, shape, workspace, algorithm = self._op, self._op.shape, self._workspace.data.ptr, self.choice
        keys, values = (int(cache.data.ptr) for cache in self._cache_of(arrays))
        lengths, q, out = (arrays[name].data.ptr for name in (op.operands[2], op.source, op.name))
        by_token = (shape.sequences, shape.new_tokens, shape.kv_heads, shape.query_heads, shape.head_dim)
        if self._gathered:
            self._gathered[0][...] = arrays[op.source].reshape(by_token).transpose(0, 2, 1, 3, 4)
            q, out = (array.data.ptr for array in self._gathered)
        wide, weights = self._wide.data.ptr, self._weights.data.ptr
        self._scores.launch(keys, q, wide, workspace, stream, algorithm=algorithm)
        self._enqueue_softmax(lengths)
        self._sums.launch(values, weights, out, workspace, stream, algorithm=algorithm)
        if self._gathered:
            arrays[op.name].reshape(by_token)[...] = self._gathered[1].transpose(0, 2, 1, 3, 4)

    def _cache_of(self, arrays: Arrays) -> tuple[Any, Any]:
        """Sorted keys and values of a run. Zero times NaN is NaN, so hidden values that are NaN are cleared first,
        if a check has any."""
        if (known := self._in_order.get(arrays[self._op.operands[2]].data.ptr)) is not None:
            return known
        keys, values = in_order(self._op, arrays)
        if self._op.form.paged is None:
            values = cupy.where(cupy.isnan(from_bits(values, self._dtype)), values.dtype.type(0), values)
        self._kept = keys, values  # keeps both alive during the run
        return keys, values

    def _enqueue_softmax(self, lengths: int) -> None:
        """Launches one CTA per query, on the current stream."""
        shape, form = self._op.shape, self._op.form
        args = (
            self._wide,
            self._weights,
            cupy.uint64(lengths),
            cupy.int32(shape.max_length),
            cupy.int32(shape.new_tokens),
            cupy.int32(shape.query_heads),
            cupy.int32(shape.kv_heads),
            cupy.float32(shape.score_scale),
            cupy.int32(form.window or 0),
            cupy.float32(form.soft_cap or 0.0),
        )
        self._softmax((shape.sequences * shape.kv_heads * shape.columns,), (_THREADS,), args)

    def poison(self) -> None:
        """Writes NaN to scores and weights."""
        self._wide.fill(cupy.nan)
        self._weights.fill(self._dtype.row.nan_bits)
