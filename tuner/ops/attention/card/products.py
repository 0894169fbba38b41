"""The library's side of an attention without a vendor's fused kernel: batched products of cuBLASLt, with a softmax.

That is so where PyTorch is not installed, and where scores have a soft cap, which its fused kernels do not know. The
result says so. The products read the cache once, as any attention does, but there are three launches, and they read all
of it, whatever the lengths and the window. Pages are put in order before, outside of what is timed.
"""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.trial.library_recipe import LibraryRecipe
from tuner.ops.attention.card.data import AttentionData, WithAttentions
from tuner.ops.attention.card.products_around import ProductsAround, WithProducts
from tuner.workers.gpu.batched_gemm import BatchedGemm, BatchedShape
from tuner.workers.gpu.cublaslt import WORKSPACE_BYTES, CublasLt
from tuner.workers.gpu.data import from_bits
from tuner.workers.gpu.outputs import bits_type
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.tools import kernel_of

#: What a recipe says of it.
NO_FUSED_ATTENTION = (
    "no vendor's fused attention was there, since {why}: cuBLASLt's batched products, with a softmax of ours"
)
NO_TORCH, NO_CAP = "PyTorch is not installed", "PyTorch's have no soft cap of scores"
IN_ORDER = ", over pages that were put in order before, untimed"
_THREADS = 256


class AttentionProducts(WithProducts):
    """Scores, softmax, sums of values, and the products around them; a `Runner`."""

    #: Products that read the attention run behind it, those that it reads in front of it.
    can_run_beside = False

    def __init__(self, lt: CublasLt, data: AttentionData, tools: Any) -> None:
        """`tools` has the kernel `tuner_softmax`, and those of `ProductsAround`.

        Raises:
            WorkerError: the library offers no algorithm.
        """
        self._data, self._lt_version = data, lt.version
        shape, dtype = data.attention.shape, data.workload.dtype
        self._softmax = tools.get_function(kernel_of("tuner_softmax", dtype))
        batch, columns, tokens = shape.sequences * shape.kv_heads, shape.columns, shape.max_length
        of_cache = {"batch": batch, "x_stride": tokens * shape.head_dim}
        scores = BatchedShape(m=tokens, n=columns, k=shape.head_dim, is_transposed=True, is_wide=True, **of_cache)
        sums = BatchedShape(m=shape.head_dim, n=columns, k=tokens, is_transposed=False, is_wide=False, **of_cache)
        self._scores, self._sums = BatchedGemm(lt, dtype, scores), BatchedGemm(lt, dtype, sums)
        self._products = ProductsAround(lt, data, tools)
        self._workspace = cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)
        self._wide = cupy.empty((batch, columns, tokens), dtype=cupy.float32)
        self._weights = cupy.empty((batch, columns, tokens), dtype=bits_type(dtype))
        #: Queries, and results, by KV head: as they lie, where there is one new token.
        by_head = (shape.sequences, shape.kv_heads, shape.new_tokens, shape.query_heads, shape.head_dim)
        self._gathered = [cupy.empty(by_head, dtype=bits_type(dtype)) for _ in range(2 * (shape.new_tokens > 1))]
        #: Of a paged cache, keys and values in order, by the address of each slot's lengths.
        self._in_order = {} if data.attention.form.paged is None else self._slots_in_order()
        self._choice = 0

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Of each op, how many there are to choose from; of both batched products the same one."""
        both = min(self._scores.num_algorithms, self._sums.num_algorithms)
        return (*self._products.num_algorithms, both)

    def recipe(self) -> LibraryRecipe:
        """How to call the library as this does."""
        calls = self._products.calls()
        form = self._data.attention.form
        attention = NO_FUSED_ATTENTION.format(why=NO_TORCH if form.soft_cap is None else NO_CAP)
        attention += "" if form.paged is None else IN_ORDER
        return LibraryRecipe(cublaslt_version=self._lt_version, beside=False, calls=calls, attention=attention)

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues one run; `stream` is the current one."""
        assert isinstance(ops, WithAttentions)
        given, inputs = ops.attentions[0], self._data.inputs_at(ops.attentions[0])
        self._products.enqueue_in_front(tuple(ops), stream)
        keys, values = (int(cache.data.ptr) for cache in self._cache_of(inputs))
        shape, workspace, algorithm = self._data.attention.shape, self._workspace.data.ptr, self._choice
        q, out = given.q, given.out
        if self._gathered:
            queries = self._data.queries_at(given).reshape(
                shape.sequences, shape.new_tokens, shape.kv_heads, shape.query_heads, shape.head_dim
            )
            self._gathered[0][...] = queries.transpose(0, 2, 1, 3, 4)
            q, out = (array.data.ptr for array in self._gathered)
        wide, weights = self._wide.data.ptr, self._weights.data.ptr
        self._scores.launch(keys, q, wide, workspace, stream, algorithm=algorithm)
        self._enqueue_softmax(given.lengths)
        self._sums.launch(values, weights, out, workspace, stream, algorithm=algorithm)
        if self._gathered:
            rows = self._data.output_at(given).reshape(
                shape.sequences, shape.new_tokens, shape.kv_heads, shape.query_heads, shape.head_dim
            )
            rows[...] = self._gathered[1].transpose(0, 2, 1, 3, 4)
        self._products.enqueue_behind(tuple(ops), given.out, stream)

    def _slots_in_order(self) -> dict[int, tuple[Any, Any]]:
        slots = [self._data.inputs_of_slot(slot) for slot in range(self._data.num_slots)]
        lengths = self._data.attention.operands[2]
        return {inputs[lengths].data.ptr: self._data.contiguous_cache(inputs) for inputs in slots}

    def _cache_of(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Keys and values of a run's inputs, in order. A weight of zero times NaN is NaN, so hidden values that are NaN
        are cleared before, where a check has any."""
        op = self._data.attention
        if (known := self._in_order.get(inputs[op.operands[2]].data.ptr)) is not None:
            return known
        keys, values = self._data.contiguous_cache(inputs)
        if op.form.paged is None and self._data.has_nan(inputs):
            is_nan = cupy.isnan(from_bits(values, self._data.workload.dtype))
            values = cupy.where(is_nan, values.dtype.type(0), values)
        self._kept = keys, values  # as long as the run
        return keys, values

    def _enqueue_softmax(self, lengths: int) -> None:
        """A CTA for each query, on the current stream."""
        shape, form = self._data.attention.shape, self._data.attention.form
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

    def abort_record(self) -> str | None:
        """The library never waits."""
        return None

    def overwritten(self) -> str:
        """The library has no memory that it must not write but the problem's."""
        return ""

    def poison(self) -> None:
        """Scores and weights."""
        self._products.poison()
        self._wide.fill(cupy.nan)
        self._weights.fill(self._data.workload.dtype.row.nan_bits)
