"""The tensors of an attention: queries, caches and lengths for each slot, and checks at other lengths.

Caches rotate like weights, so every launch of a chain reads its keys and values from DRAM. Checks have other lengths: a
padded slot, one token, lengths at the edges of tiles. After the longest of these, their cache is NaN.

Pages of a cache are assigned to sequences in random order. Past the end of each context of a check, the table holds
page numbers that do not exist.

The queries and the cache's new rows may be the output of an earlier product. The reference for the later ops then
starts from these rows as the launch wrote them. They are set to NaN before the launch, and are checked first, against
their own references. So stale, wrong or prematurely read rows are detected, and rounding errors of scores need no
separate bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.ops.attention.card.written_cache import AttendedCache
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.fitting import bytes_of_checks, copy_bytes
from tuner.ops.attention.plans.tasks import CLUSTERS
from tuner.ops.attention.reference import attend, gathered
from tuner.ops.attention.schedule import TILE_TOKENS
from tuner.workers.gpu.tensors.kv_cache import hide_numbers, hide_pages, hide_rows
from tuner.workers.gpu.tensors.op_data import Arrays, OpData, draw_bits, from_bits
from tuner.workers.gpu.tensors.reference import Reference

Array = Any  # a cupy.ndarray; CuPy has no type annotations

#: Number of standard deviations that bound the sum of independent rounding errors; same as for products.
_DEVIATIONS = 12
#: Relative error shared by all softmax weights of a query, from fp32 scores, exp2 and the normaliser.
_WEIGHTS_ERROR = 2.0**-14


def edge_lengths(op: AttentionOp, turn: int) -> tuple[int, ...]:
    """Lengths at which kernels tend to be wrong: zero, one token, near a multiple of a CTA's or a cluster's tile, the
    maximum. If there are several sequences, one is empty in turn 1 and has one token in the other turns.
    """
    longest = op.shape.max_length
    edges = {tile * cluster + off for tile in TILE_TOKENS for cluster in CLUSTERS for off in (-1, 0, 1)}
    lengths = sorted({0, 1, op.shape.new_tokens, longest - 1, longest, *(edge for edge in edges if edge < longest)})
    step = max(1, round(len(lengths) * 0.618))
    while math.gcd(step, len(lengths)) != 1:
        step += 1  # so that few sequences get widely spread lengths
    spread = [lengths[(turn + place) * step % len(lengths)] for place in range(op.shape.sequences)]
    if len(spread) > 1:
        spread[turn % len(spread)] = 0 if turn == 1 else 1
    return tuple(spread)


class AttentionData(OpData):
    """All tensors of one attention."""

    def __init__(self, workload: Workload, op: AttentionOp, seed: int) -> None:
        super().__init__(workload, op, seed)
        self._random = cupy.random.default_rng([seed, workload.ops.index(op)])
        #: The cache that the odd-numbered checks share, if they do; it ends in NaN.
        self._ragged_cache: dict[str, Array] = {}
        #: Set if a product writes to the cache.
        self._written: AttendedCache | None = None

    @property
    def writes_cache(self) -> bool:
        """Whether an earlier product writes the cache's new rows."""
        return bool(self.workload.turned_for == self.op)

    @property
    def copy_bytes(self) -> int:
        """Bytes of one slot's tensors."""
        return copy_bytes(self.op)

    @property
    def check_bytes(self) -> int:
        """Bytes of the tensors of all checks."""
        return bytes_of_checks(self.workload, self.op)

    def check_lengths(self, seed_index: int) -> tuple[int, ...]:
        """Lengths of a check: the longest for the first, at edges for the second and fourth, random for the third."""
        shape = self.op.shape
        if seed_index == 0:
            return tuple([shape.max_length] * shape.sequences)
        if seed_index % 2 == 1:
            return edge_lengths(self.op, seed_index)
        drawn = np.random.default_rng(self._seed)
        return tuple(drawn.integers(0, shape.max_length, shape.sequences, endpoint=True).tolist())

    def draw_slot(self) -> dict[str, Array]:
        """Tensors at the timed lengths."""
        return self._inputs_at(self.op.timed_lengths, self._draw_cache())

    def draw_check(self, seed: int, first: Arrays) -> dict[str, Array]:
        """Tensors of a check; checks share their caches if no launch writes to them."""
        op, is_odd = self.op, seed % 2 == 1
        if self.writes_cache:
            cache = self._draw_ragged(edge_lengths(op, seed)) if is_odd else self._draw_cache()
        elif is_odd:
            ends = map(max, edge_lengths(op, 1), edge_lengths(op, 3))
            cache = self._ragged_cache = self._ragged_cache or self._draw_ragged([*ends])
        else:
            keys, values, _, *table = op.operands
            cache = {name: first[name] for name in (keys, values, *table)}
        return self._inputs_at(self.check_lengths(seed), cache)

    def in_place(self) -> tuple[str, ...]:
        """Empty: an attention's launch changes nothing in place."""
        return ()

    def only_read(self, inputs: Arrays) -> list[tuple[str, Array]]:
        """All rows of a cache except the new ones, which a launch writes."""
        written = self.op.operands[:2] if self.writes_cache else ()
        names = [name for name in (self.op.source, *self.op.operands) if name in inputs and name not in written]
        found = [(name, inputs[name]) for name in names]
        return found + (self._written.only_read(inputs) if self._written else [])

    def cache_of(self, op: TileOp) -> AttendedCache | None:
        """The cache of this attention, if the op writes to it."""
        if not self.writes_cache or op.name != self.op.source:
            return None
        self._written = AttendedCache(op, self.op, self.workload.dtype)
        return self._written

    def _inputs_at(self, lengths: tuple[int, ...], cache: dict[str, Array]) -> dict[str, Array]:
        op = self.op
        found = dict(cache) if self.read_from_ops else {op.source: self._draw((op.m, op.n)), **cache}
        return found | {op.operands[2]: cupy.asarray(np.array(lengths, dtype=np.int32))}

    def _draw(self, shape: tuple[int, ...]) -> Array:
        return draw_bits(self._random, shape, 1.0, self.workload.dtype)

    def _draw_cache(self) -> dict[str, Array]:
        op = self.op
        cache = {name: self._draw(op.cache_shape) for name in op.operands[:2]}
        return cache | {name: self._draw_table(op.form.paged) for name in op.operands[3:]}

    def _draw_table(self, paged: PagedCache | None) -> Array:
        """A table with all pages in random order."""
        assert paged is not None
        order = np.random.default_rng(self._seed).permutation(paged.num_pages).astype(np.int32)
        return cupy.asarray(order.reshape(self.op.shape.sequences, -1))

    def _draw_ragged(self, ends: Sequence[int]) -> dict[str, Array]:
        """A cache with NaN after the sequences' ends. The table's entries there are not page numbers."""
        op, paged = self.op, self.op.form.paged
        cache = self._draw_cache()
        tables = [cache[name] for name in op.operands[3:]]
        for name in op.operands[:2]:
            if paged is None:
                hide_rows(cache[name], ends, self.workload.dtype.row.nan_bits)
            else:
                hide_pages(cache[name], tables[0], ends, paged, self.workload.dtype.row.nan_bits)
        if paged is not None:
            hide_numbers(tables[0], ends, paged)
        return cache

    def references(self, inputs: Arrays, read: Arrays) -> dict[str, Reference]:
        """The attention's output [m, n] for these inputs and queries.

        The error bound: the kernel and the library round each weight to the element type, with independent errors. The
        fp32 computation before that has one error that all weights share. The output is rounded."""
        op, dtype, shape = self.op, self.workload.dtype, self.op.shape
        queries, lengths = read.get(op.source, inputs.get(op.source)), inputs[op.operands[2]]
        keys, values = in_order(op, inputs)
        by_head = queries.reshape(shape.sequences, shape.new_tokens, -1, shape.head_dim)
        found = attend(
            shape, by_head, keys, values, lengths.get().tolist(), cupy, form=op.form,
            widen=lambda bits: from_bits(bits, dtype, as_type=cupy.float64),
        )  # fmt: skip
        wanted, deviation, magnitude = (part.reshape(op.m, op.n) for part in found)
        roundoff, step = dtype.row.roundoff, dtype.row.smallest_step
        tolerance = _DEVIATIONS * roundoff * deviation + _WEIGHTS_ERROR * magnitude
        tolerance += 2 * roundoff * cupy.abs(wanted) + 2 * step
        return {op.name: Reference(values=wanted, tolerance=tolerance.astype(cupy.float32))}


def in_order(op: AttentionOp, arrays: Arrays) -> tuple[Array, Array]:
    """Keys and values [sequences, KV heads, max_length, head_dim]: the given arrays, or for pages a sorted copy,
    with zeros after the lengths."""
    keys, values, lengths, *table = (arrays[name] for name in op.operands)
    if op.form.paged is None:
        return keys, values
    at = lengths.get().tolist()
    return tuple(gathered(op.shape, op.form.paged, cache, table[0], at, cupy) for cache in (keys, values))
