"""The tensors of a problem with an attention: queries, caches and lengths of each slot, checks at other lengths.

Caches rotate as weights do, so every launch of a chain reads its keys and values from DRAM. Checks have lengths of
their own: a padded slot, one token, what lies at the edges of tiles. Behind the longest of these their cache is NaN.

Pages of a cache are given to sequences in random order. Behind a check's contexts the table has numbers of no page.

Queries may be what a product in front writes, and so may the cache's new rows. What follows is then judged by a
reference that starts from these rows as the launch wrote them. They were NaN before, and their own references come
first. So rows that are stale, wrong or read too early are found out, and roundings of scores need no bound of their
own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from tuner.core.problem.gemm_op import GemmOp
from tuner.core.problem.kv_cache import PagedCache
from tuner.core.trial.evaluator import Problem
from tuner.ops.attention.card.written_cache import AttendedCache
from tuner.ops.attention.fitting import bytes_of_checks, cache_bytes
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.reference import attend, gathered
from tuner.ops.attention.schedule import TILE_TOKENS
from tuner.ops.attention.tasks import CLUSTERS
from tuner.workers.gpu.data import ProblemData, from_bits
from tuner.workers.gpu.kv_cache import hide_numbers, hide_pages, hide_rows
from tuner.workers.gpu.reference import Reference
from tuner.workers.gpu.turned import Turned
from tuner.workers.protocol.stopwatch import Stopwatch
from tuner.workers.source.launch_args import OpBuffers

Array = Any  # a cupy.ndarray; CuPy has no type annotations

#: Slots beyond those that fill three L2s.
_SPARE_SLOTS = 1
#: Standard deviations within which the sum of independent roundings is; as for products.
_DEVIATIONS = 12
#: Relative error of all weights of a query together: of scores in fp32, of exp2 and of the normaliser.
_WEIGHTS_ERROR = 2.0**-14


class AttentionAddresses(NamedTuple):
    """Device addresses of one attention's operands."""

    q: int
    keys: int
    values: int
    lengths: int
    out: int
    #: The table of a paged cache, or 0.
    pages: int = 0


class WithAttentions(tuple[OpBuffers, ...]):
    """The products' operands, and those of the attentions."""

    attentions: tuple[AttentionAddresses, ...]

    @classmethod
    def of(cls, products: tuple[OpBuffers, ...], attentions: tuple[AttentionAddresses, ...]) -> WithAttentions:
        """Both."""
        made = cls(products)
        made.attentions = attentions
        return made


def edge_lengths(op: AttentionOp, turn: int) -> tuple[int, ...]:
    """Lengths at which a kernel may be wrong: none, one token, about whole tiles of a CTA or a cluster, the longest.
    Of several sequences one has none in turn 1, and one token in the others."""
    longest = op.shape.max_length
    edges = {tile * cluster + off for tile in TILE_TOKENS for cluster in CLUSTERS for off in (-1, 0, 1)}
    lengths = sorted({0, 1, op.shape.new_tokens, longest - 1, longest, *(edge for edge in edges if edge < longest)})
    step = max(1, round(len(lengths) * 0.618))
    while math.gcd(step, len(lengths)) != 1:
        step += 1  # so that few sequences get lengths from all over
    spread = [lengths[(turn + place) * step % len(lengths)] for place in range(op.shape.sequences)]
    if len(spread) > 1:
        spread[turn % len(spread)] = 0 if turn == 1 else 1
    return tuple(spread)


class AttentionData(ProblemData):
    """All tensors of one problem with an attention."""

    def __init__(self, problem: Problem, l2_bytes: int, watch: Stopwatch) -> None:
        """As `ProblemData`."""
        #: Of the checks with odd numbers, which end in NaN, where they share one.
        self._ragged_cache: dict[str, Array] = {}
        #: By check: what the launch wrote in front of the attention, and the references that start from it.
        self._followed: dict[int, tuple[Array, dict[str, Reference]]] = {}
        super().__init__(problem, l2_bytes, watch)
        if self.writer is not None:
            self._behind(0, self.writer)  # of nothing: CuPy compiles now what a candidate's check would wait for
            watch.ended("references")

    @property
    def attention(self) -> AttentionOp:
        """The one that there is."""
        op: AttentionOp = self.problem.workload.launch_ops[0]
        return op

    @property
    def writer(self) -> str | None:
        """The product that writes the queries; None where they are an input."""
        return None if self.workload.op_index(self.attention.source) is None else self.attention.source

    @property
    def writes_cache(self) -> bool:
        """Whether that one writes the cache's new rows, too."""
        return self.workload.turned_for is not None

    def slot_ops(self, slot: int) -> WithAttentions:
        """Operand addresses of one launch of the chain."""
        index = slot % len(self._weights)
        return self._with_attention(index, self._inputs[index])

    def check_ops(self, seed_index: int) -> WithAttentions:
        """Operand addresses of a checked launch: weights of slot 0, and inputs of one check seed."""
        return self._with_attention(0, self._check_inputs[seed_index])

    def inputs_of_slot(self, slot: int) -> dict[str, Array]:
        """Queries, caches, lengths and others by name, as bits, of one launch of the chain."""
        return self._inputs[slot % self.num_slots]

    @property
    def num_slots(self) -> int:
        """Different ones; those of a chain's launches repeat."""
        return len(self._weights)

    def inputs_at(self, given: AttentionAddresses) -> dict[str, Array]:
        """The inputs, of a slot or of a check, whose lengths lie there."""
        lengths = self.attention.operands[2]
        found = (*self._inputs, *self._check_inputs)
        return next(inputs for inputs in found if inputs[lengths].data.ptr == given.lengths)

    def queries_at(self, given: AttentionAddresses) -> Array:
        """The queries that lie there, as bits [m, n]."""
        if self.writer is None:
            return self.inputs_at(given)[self.attention.source]
        return next(out[self.writer].bits for out in self.outputs if out[self.writer].address == given.q)

    def contiguous_cache(self, inputs: dict[str, Array]) -> tuple[Array, Array]:
        """Keys and values [sequences, KV heads, max_length, head_dim]: the inputs, or of pages a copy in order, which
        has zeros behind the lengths."""
        op, paged = self.attention, self.attention.form.paged
        keys, values, lengths, *table = (inputs[name] for name in op.operands)
        if paged is None:
            return keys, values
        at = lengths.get().tolist()
        return tuple(gathered(op.shape, paged, cache, table[0], at, cupy) for cache in (keys, values))

    def has_nan(self, inputs: dict[str, Array]) -> bool:
        """Whether these are inputs whose cache is NaN behind its contexts."""
        return any(inputs is one for one in self._check_inputs[1::2])

    def output_at(self, given: AttentionAddresses) -> Array:
        """The bits of the output that lies there."""
        name = self.attention.name
        return next(out[name].bits for out in self.outputs if out[name].address == given.out)

    def check_lengths(self, seed_index: int) -> tuple[int, ...]:
        """Of the first check the longest, of the second and fourth those at edges, of the third drawn ones."""
        if seed_index == 0:
            return (self.attention.shape.max_length,) * self.attention.shape.sequences
        if seed_index % 2 == 1:
            return edge_lengths(self.attention, seed_index)
        drawn = np.random.default_rng(self.problem.seed)
        shape = self.attention.shape
        return tuple(drawn.integers(0, shape.max_length, shape.sequences, endpoint=True).tolist())

    def wanted(self, seed_index: int) -> Iterator[tuple[str, Reference]]:
        """Those that start from what the launch wrote are last."""
        yield from super().wanted(seed_index)
        if self.writer is not None:
            yield from self._behind(seed_index, self.writer).items()

    def _behind(self, seed_index: int, writer: str) -> dict[str, Reference]:
        """What follows from what a checked launch left in front of the attention; made once for all that leave the
        same bits."""
        written = self.written(writer, seed_index)
        if (known := self._followed.get(seed_index)) is not None and bool((known[0] == written).all()):
            return known[1]
        inputs, first = self._check_inputs[seed_index], self.references[seed_index]
        attended = self._attended(inputs, self.outputs[0][writer].bits)
        behind = range(self.workload.tile_ops_before(self.attention), len(self.workload.tile_ops))
        found = self._references(inputs, {**first, **attended}, behind)
        found = {name: reference for name, reference in found.items() if name not in first}
        self._followed[seed_index] = written.copy(), found
        return found

    def _first_references(self, inputs: dict[str, Array]) -> dict[str, Reference]:
        """Where a product writes queries those in front of the attention alone."""
        if self.writer is not None:
            return self._references(inputs, {}, range(self.workload.tile_ops_before(self.attention)))
        attended = self._attended(inputs, inputs[self.attention.source])
        return self._references(inputs, attended, range(len(self.workload.tile_ops)))

    def _cache_of(self, op: GemmOp) -> Turned:
        if not self.writes_cache:
            return super()._cache_of(op)
        return AttendedCache(op, self.attention, self.workload.dtype)

    def _only_read(self, inputs: dict[str, Array]) -> list[tuple[str, Array]]:
        """Of a cache whose new rows a launch writes, all others."""
        found = super()._only_read(inputs)
        for cache in self.caches.values():
            if isinstance(cache, AttendedCache):
                found = [(name, array) for name, array in found if name not in self.attention.operands[:2]]
                found += cache.only_read(inputs)
        return found

    def _with_attention(self, slot: int, inputs: dict[str, Array]) -> WithAttentions:
        op, outputs = self.attention, self.outputs[slot]
        out = outputs[op.name].address
        q = int(inputs[op.source].data.ptr) if self.writer is None else outputs[self.writer].address
        keys, values, lengths, *table = (int(inputs[name].data.ptr) for name in op.operands)
        addresses = AttentionAddresses(q=q, keys=keys, values=values, lengths=lengths, out=out, pages=sum(table))
        return WithAttentions.of(self._op_buffers(slot, inputs), (addresses,))

    def _rotation(self) -> tuple[int, int]:
        """A cache is large, so that there are no more than make every launch cold."""
        chain_length, num_slots = super()._rotation()
        enough = -(-3 * self.l2_bytes // self.workload.rotated_bytes) + _SPARE_SLOTS
        return chain_length, min(num_slots, enough)

    def _copy_bytes(self) -> int:
        op, cache = self.attention, cache_bytes(self.workload)
        cache *= 1 if op.form.paged is None else 2  # the library has a copy in order
        return super()._copy_bytes() + cache + 2 * op.m * op.n * self.workload.dtype.size_bytes

    def _check_bytes(self) -> int:
        return bytes_of_checks(self.workload)

    def _draw_inputs(self, *, is_odd: bool = False) -> dict[str, Array]:
        return self._inputs_at(self.attention.timed_lengths, self._draw_cache())

    def _draw_check_inputs(self, seed: int) -> dict[str, Array]:
        """Checks share their caches, where no launch writes to them."""
        op, is_odd = self.attention, seed % 2 == 1
        if self.writes_cache:
            cache = self._draw_ragged(edge_lengths(op, seed)) if is_odd else self._draw_cache()
        elif is_odd:
            ends = map(max, edge_lengths(op, 1), edge_lengths(op, 3))
            cache = self._ragged_cache = self._ragged_cache or self._draw_ragged([*ends])
        else:
            keys, values, _, *table = op.operands
            cache = {name: self._inputs[0][name] for name in (keys, values, *table)}
        return self._inputs_at(self.check_lengths(seed), cache)

    def _inputs_at(self, lengths: tuple[int, ...], cache: dict[str, Array]) -> dict[str, Array]:
        """All inputs: those of the products too, but what the attention writes."""
        op = self.attention
        found = dict(cache) if self.writer is not None else {op.source: self._draw((op.m, op.n), 1.0), **cache}
        found[op.operands[2]] = cupy.asarray(np.array(lengths, dtype=np.int32))
        others = super()._draw_inputs()
        return found | {name: array for name, array in others.items() if name != op.name}

    def _draw_cache(self) -> dict[str, Array]:
        op = self.attention
        cache = {name: self._draw(op.cache_shape, 1.0) for name in op.operands[:2]}
        return cache | {name: self._draw_table(op.form.paged) for name in op.operands[3:]}

    def _draw_table(self, paged: PagedCache | None) -> Array:
        """All pages in random order."""
        assert paged is not None
        order = np.random.default_rng(self.problem.seed).permutation(paged.num_pages).astype(np.int32)
        return cupy.asarray(order.reshape(self.attention.shape.sequences, -1))

    def _draw_ragged(self, ends: Sequence[int]) -> dict[str, Array]:
        """A cache with NaN behind the sequences' ends. Of the table what lies there is no page."""
        op, paged = self.attention, self.attention.form.paged
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

    def _attended(self, inputs: dict[str, Array], queries: Array) -> dict[str, Reference]:
        """The attention's output for these inputs and queries [m, n].

        Its bound. The kernel and the library round each weight to the element type, which is independent of the others.
        What is computed in fp32 has an error of all weights together. The output is rounded."""
        op, dtype, shape = self.attention, self.workload.dtype, self.attention.shape
        lengths = inputs[op.operands[2]]
        keys, values = self.contiguous_cache(inputs)
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
