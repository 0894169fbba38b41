"""A problem's tensors on the card: random inputs, weights that rotate, outputs between canaries, references.

A *slot* is one copy of the problem on weights, inputs and outputs of its own; intermediates are shared, as a caching
allocator would have it. A chain of launches walks the slots, so every launch reads its weights from DRAM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy

from tuner.core.plan.norm_slots import slot_stride
from tuner.core.problem.dtype import ELEMENTS
from tuner.core.problem.dtype_row import DtypeRow, OperandRow
from tuner.core.problem.op import Tensor
from tuner.core.problem.workload import Dtype, GemmOp, Workload
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import CacheState

from ..protocol.stopwatch import Stopwatch
from ..source.launch_args import OpBuffers
from .fitting import NUM_CHECKS, slots_that_fit
from .integrity import Region, region
from .op_data import RunOperands, data_of, draw_bits, from_bits, to_bits
from .outputs import GuardedOutput
from .reference import Operands, Reference, reference
from .segments import Segments
from .turned import Turned, TurnedCache, draw_lengths, draw_pages

Array = Any  # a cupy.ndarray; CuPy has no type annotations

#: Launches of one timed chain, at least.
MIN_CHAIN = 8
#: ... and at most: beyond, a flush in front of the chain makes it cold.
MAX_CHAIN = 256
#: Seeds whose numbers are checked before timing; one more is checked after it.
NUM_CHECK_SEEDS = NUM_CHECKS - 1


#: Of what a norm reads, where it is odd: one channel of all rows but the small ones, and the size of those. Bytes of a
#: model's residual stream look like that.
LARGE_CHANNEL, SMALL_ROW = 3e4, 1e-3


def residual_of(op: GemmOp) -> str:
    """The tensor that the op adds."""
    return op.residual_source or f"{op.name}.residual"


def factors_of(op: GemmOp) -> str:
    """The input by which the op's rows are scaled, or the squares of an input that it norms."""
    return f"{op.norm}.squares" if op.norm else f"{op.name}.row_scale"


def _address(array: Array | None) -> int:
    return 0 if array is None else int(array.data.ptr)


#: Slots beyond those that fill three L2s.
_SPARE_SLOTS = 1


def guarded(tensor: Tensor) -> GuardedOutput:
    """Memory of what a launch op writes beside its output."""
    return GuardedOutput(tensor.num_elements // tensor.shape[-1], tensor.shape[-1], element_of(tensor))


def element_of(tensor: Tensor) -> Dtype | DtypeRow:
    """One of `Dtype`; of factors and integers their row."""
    row = ELEMENTS[tensor.dtype]
    return Dtype(tensor.dtype) if isinstance(row, OperandRow) else row


class ProblemData:
    """All tensors of one problem."""

    def __init__(self, problem: Problem, l2_bytes: int, watch: Stopwatch) -> None:
        """Allocates and fills; about 2 GB for an FFN of an 8-billion-parameter model. `watch` is told when the inputs
        and when the references are there.

        Raises:
            DoesNotFit: the card's free memory does not hold one copy.
        """
        self.problem = problem
        self.workload: Workload = problem.workload
        self.l2_bytes = l2_bytes
        #: Of each launch op.
        self.own = tuple(data_of(self.workload, op, problem.seed) for op in self.workload.launch_ops)
        self._segments = Segments(self)
        self.chain_length, num_slots = self._rotation()
        dtype, self._num_drawn = self.workload.dtype, 0
        self._random = cupy.random.default_rng(problem.seed)
        ops = self.workload.tile_ops
        self._bias = [self._draw((op.weight_rows,), 1.0) if op.bias else None for op in ops]
        self._weights = [[self._draw((op.weight_rows, op.k), op.k**-0.5) for op in ops] for _ in range(num_slots)]
        self._inputs = [self._slot_inputs() for _ in range(num_slots)]
        self._check_inputs = [self._draw_check_inputs(seed) for seed in range(NUM_CHECK_SEEDS + 1)]
        #: By check and name, what a launch op changes in place as it is before each launch.
        self._before = [
            {name: inputs[name].copy() for own in self.own for name in own.in_place()} for inputs in self._check_inputs
        ]
        #: By name, of the op that is turned: what it writes its keys and values to.
        self.caches = {op.name: self._cache_of(op) for op in ops if op.rotary}
        written = self.workload.ops
        kept = [op for op in written if not self.workload.leaves(op)]
        beside = [one for own in self.own for one in own.outputs]
        shared = {op.name: GuardedOutput(op.m, op.c_columns, dtype) for op in kept}
        #: By slot and op, in the order in which they are written.
        self.outputs: list[dict[str, GuardedOutput]] = [
            {op.name: shared.get(op.name) or GuardedOutput(op.m, op.c_columns, dtype) for op in written}
            | {one.name: guarded(one) for one in beside}
            for _ in range(num_slots)
        ]
        cupy.cuda.Device().synchronize()
        watch.ended("inputs")
        #: By check and name, of what the inputs alone tell.
        self.references = [self._segments.first(inputs) for inputs in self._check_inputs]
        self._segments.warm_up()
        cupy.cuda.Device().synchronize()
        watch.ended("references")
        self._flush = cupy.zeros(3 * l2_bytes // 4, dtype=cupy.uint32)

    @property
    def needs_flush(self) -> bool:
        """Whether the chain alone does not push its own weights out of the L2."""
        cold = self.problem.objective.l2 is CacheState.COLD
        return cold and self.chain_length * self.workload.rotated_bytes < 3 * self.l2_bytes

    @property
    def flush_buffer(self) -> Array:
        """Three times the L2, to be read."""
        return self._flush

    @property
    def num_slots(self) -> int:
        """Different ones; those of a chain's launches repeat."""
        return len(self._weights)

    def slot_ops(self, slot: int) -> RunOperands:
        """Operands of one launch of the chain."""
        index = slot % len(self._weights)
        return self._operands(index, self._inputs[index])

    def check_ops(self, seed_index: int) -> RunOperands:
        """Operands of a checked launch: slot 0 on the inputs of one check seed."""
        return self._operands(0, self._check_inputs[seed_index])

    def _operands(self, slot: int, inputs: dict[str, Array]) -> RunOperands:
        written = {name: output.bits for name, output in self.outputs[slot].items()}
        return RunOperands.of(self._op_buffers(slot, inputs), inputs | written)

    def poison(self) -> None:
        """NaN into all that a checked launch must write, and into caches what shows which rows it writes."""
        for output in self.outputs[0].values():
            output.poison()
        for inputs, before in zip(self._check_inputs, self._before, strict=True):
            for name, array in before.items():
                inputs[name][...] = array
        for cache in self.caches.values():
            cache.poison(self._check_inputs)

    def written(self, name: str, seed_index: int) -> Array:
        """What a checked launch left of an op, as bits [m, n]: of what is turned queries, keys and values."""
        if name in self._before[seed_index]:
            array = self._check_inputs[seed_index][name]
            return array.reshape(-1, array.shape[-1])
        bits = self.outputs[0][name].bits
        if name not in self.caches:
            return bits
        return self.caches[name].beside(bits, self._check_inputs[seed_index])

    def strayed(self, name: str, seed_index: int) -> str:
        """Where a checked launch wrote that it must not, beside an op's output, in words; empty where it did not."""
        if name not in self.caches:
            return ""
        return self.caches[name].strayed(self._check_inputs[seed_index])

    def wanted(self, seed_index: int) -> Iterator[tuple[str, Reference]]:
        """What a checked launch must have left of each op, by name. Each is to be judged before the next one is asked
        for: what follows may start from what the launch wrote."""
        yield from self.references[seed_index].items()
        yield from self._segments.behind(seed_index)

    def inputs_of_check(self, seed_index: int) -> dict[str, Array]:
        """By name."""
        return self._check_inputs[seed_index]

    def dtype_of(self, name: str) -> Dtype | DtypeRow:
        """Of what a launch writes."""
        if name in self.outputs[0]:
            return self.outputs[0][name].dtype
        (tensor,) = (one for own in self.own for one in own.given if one.name == name)
        return element_of(tensor)

    def _cache_of(self, op: GemmOp) -> Turned:
        of_own = (cache for own in self.own if (cache := own.cache_of(op)))
        return next(of_own, None) or TurnedCache(op, self.workload.dtype)

    def regions(self) -> list[Region]:
        """All that no launch may write: operands, references, and what lies around the outputs."""
        ops = self.workload.tile_ops
        found = [region(f"the bias of {op.name}", b) for op, b in zip(ops, self._bias, strict=True) if b is not None]
        for slot, (weights, inputs) in enumerate(zip(self._weights, self._inputs, strict=True)):
            found += [region(f"the weights of {op.name} in slot {slot}", w) for op, w in zip(ops, weights, strict=True)]
            found += [region(f"the input {name} of slot {slot}", array) for name, array in self._only_read(inputs)]
        for seed, (inputs, references) in enumerate(zip(self._check_inputs, self.references, strict=True)):
            found += [region(f"the input {name} of check {seed}", array) for name, array in self._only_read(inputs)]
            for name, wanted in references.items():
                found.append(region(f"the reference of {name} in check {seed}", wanted.values))
                found.append(region(f"the tolerance of {name} in check {seed}", wanted.tolerance))
        for slot, outputs in enumerate(self.outputs):
            for name, output in outputs.items():
                found += output.surroundings(f"the output {name} of slot {slot}")
        for name, cache in self.caches.items():
            found += cache.regions(name)
        return found

    def _only_read(self, inputs: dict[str, Array]) -> list[tuple[str, Array]]:
        """All but squares, which a kernel in front of ours may leave."""
        left = {factors_of(op) for op in self.workload.tile_ops if op.norm}
        left |= {tensor.name for own in self.own for tensor in own.given}
        found = [(name, array) for name, array in inputs.items() if name not in left]
        return found + [one for own in self.own for one in own.only_read(inputs)]

    def _op_buffers(self, slot: int, inputs: dict[str, Array]) -> tuple[OpBuffers, ...]:
        buffers = []
        outputs = self.outputs[slot]
        for i, op in enumerate(self.workload.tile_ops):
            added = residual_of(op)
            buffers.append(
                OpBuffers(
                    a=outputs[op.source].address if op.source in outputs else _address(inputs[op.source]),
                    w=int(self._weights[slot][i].data.ptr),
                    bias=_address(self._bias[i]),
                    c=outputs[op.name].address,
                    residual=outputs[added].address if added in outputs else _address(inputs.get(added)),
                    row_scale=_address(inputs.get(factors_of(op))),
                    rotary=self.caches[op.name].buffers(inputs) if op.name in self.caches else None,
                    m=op.m,
                    n=op.n,
                    k=op.k,
                )
            )
        return tuple(buffers)

    def _rotation(self) -> tuple[int, int]:
        """Launches of a chain, and slots that they rotate over."""
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        fits = slots_that_fit(free_bytes, self._copy_bytes(), self._check_bytes())
        if self.problem.objective.l2 is CacheState.WARM:
            return MIN_CHAIN, 1
        enough = -(-3 * self.l2_bytes // self.workload.rotated_bytes)
        wanted = max(MIN_CHAIN, min(MAX_CHAIN, enough))
        if self.own:  # caches are large, so that there are no more than make every launch cold
            fits = min(fits, enough + _SPARE_SLOTS)
        return wanted, min(wanted, fits)

    def _copy_bytes(self) -> int:
        """Of one slot's weights, inputs and outputs."""
        workload = self.workload
        others = sum(op.m * (op.n * (1 + op.residual) + op.k) for op in workload.tile_ops) * workload.dtype.size_bytes
        weights = sum(op.weight_bytes(workload.dtype) for op in workload.tile_ops)
        return weights + others + sum(own.copy_bytes for own in self.own)

    def _check_bytes(self) -> int:
        """Of what checks have that is as large as a slot: no tensor of theirs is."""
        return sum(own.check_bytes for own in self.own)

    def _slot_inputs(self) -> dict[str, Array]:
        """Of one slot. What products read too is drawn as they need it."""
        own = [one.draw_slot() for one in self.own]
        return {name: array for found in (*own, self._draw_inputs()) for name, array in found.items()}

    def _draw_check_inputs(self, seed: int) -> dict[str, Array]:
        """Of one check: odd ones in every second."""
        own = [one.draw_check(seed, self._inputs[0]) for one in self.own]
        of_products = self._draw_inputs(is_odd=seed % 2 == 1)
        return {name: array for found in (*own, of_products) for name, array in found.items()}

    def _draw_inputs(self, *, is_odd: bool = False) -> dict[str, Array]:
        """Inputs by tensor name, residuals and row scales among them.

        Row scales are in [0.5, 2) and fp32: the rows' own would all be near 1, and a wrong row would not show. What is
        normed has rows of unequal sizes for the same reason. Where it `is_odd`, one of its channels is as large as in
        some models, and every second row is small.
        """
        inputs: dict[str, Array] = {}
        written = {op.name for op in self.workload.launch_ops}
        normed = {name for op in self.workload.tile_ops for name in self._normed_inputs(op)}
        for i, op in enumerate(self.workload.tile_ops):
            wanted = [(op.source, (op.m, op.k))] if self.workload.producer_of(i) is None else []
            if op.residual and self.workload.residual_producer_of(i) is None:
                wanted.append((residual_of(op), (op.m, op.n)))
            for name, shape in wanted:
                if name not in inputs and name not in written:
                    drawn = self._draw(shape, 1.0)
                    inputs[name] = self._with_sizes(drawn, is_odd=is_odd) if name in normed else drawn
            if op.row_scale:
                inputs[factors_of(op)] = 0.5 + 1.5 * self._random.random(op.m, dtype=cupy.float32)
            if op.norm in inputs:
                inputs[factors_of(op)] = self._squares(inputs[op.norm])
            if op.rotary and self.workload.turned_for is None:
                lengths = inputs[f"{op.name}.lengths"] = draw_lengths(op.rotary, op.m, self._num_drawn)
                if op.rotary.page_tokens is not None:
                    inputs[f"{op.name}.pages"] = draw_pages(op.rotary, op.m, self._num_drawn, lengths)
        self._num_drawn += 1
        return inputs

    def _normed_inputs(self, op: GemmOp) -> tuple[str, ...]:
        """What says how large the rows are that the op norms: that input, or what the op reads that writes them."""
        producer = self.workload.norm_producer_of(self.workload.tile_ops.index(op))
        if producer is None:
            return (op.norm,)
        return self.workload.tile_ops[producer].source, residual_of(self.workload.tile_ops[producer])

    def _with_sizes(self, bits: Array, *, is_odd: bool) -> Array:
        """Rows of unequal sizes."""
        values = from_bits(bits, self.workload.dtype)
        rows = cupy.arange(values.shape[0])
        if is_odd:
            values[:, values.shape[1] // 3] = LARGE_CHANNEL * (rows % 2 == 0)
        sizes = cupy.where(rows % 2 == 1, SMALL_ROW, 1.0) if is_odd else 0.5 + rows % 4
        return to_bits(values * sizes[:, None].astype(cupy.float32), self.workload.dtype)

    def _squares(self, bits: Array) -> Array:
        """Sums of the squares of an input's rows, with room for a whole vector behind them."""
        sums = (from_bits(bits, self.workload.dtype, as_type=cupy.float64) ** 2).sum(axis=1)
        padded = cupy.zeros(slot_stride(sums.size), dtype=cupy.float32)
        padded[: sums.size] = sums
        return padded

    def _draw(self, shape: tuple[int, ...], scale: float) -> Array:
        return draw_bits(self._random, shape, scale, self.workload.dtype)

    def references_of(
        self, inputs: dict[str, Array], known: dict[str, Reference], op_indices: range
    ) -> dict[str, Reference]:
        """The outputs of those ops for these inputs, behind those that are known."""
        dtype = self.workload.dtype

        def widened(bits: Array | None) -> Array | None:
            return None if bits is None else from_bits(bits, dtype, as_type=cupy.float64)

        references = dict(known)
        for i in op_indices:
            op = self.workload.tile_ops[i]
            source, added = references.get(op.source), references.get(op.residual_source)
            factors = inputs.get(factors_of(op)) if op.row_scale else None
            if op.norm:
                normed = references.get(op.norm)
                rows: Array = widened(inputs[op.norm]) if normed is None else normed.values
                factors = 1 / cupy.sqrt((rows**2).mean(axis=1) + op.eps)
            operands = Operands(
                a=widened(inputs[op.source]) if source is None else source.values,
                w=widened(self._weights[0][i]),
                bias=widened(self._bias[i]),
                residual=widened(inputs.get(residual_of(op))) if added is None else added.values,
                row_scale=None if factors is None else factors.astype(cupy.float64),
                residual_tolerance=None if added is None else added.tolerance,
                turn=self.caches[op.name].turn(inputs) if op.name in self.caches else None,
            )
            references[op.name] = reference(
                op,
                operands,
                dtype,
                a_is_rounded=source is not None or bool(op.norm),
                is_normed=self.workload.writes_squares(i),
            )
        return references
