"""A problem's tensors on the card: random inputs, rotating weights, outputs between canaries, references.

A *slot* is one copy of the problem with its own weights, inputs and outputs; intermediates are shared, as with a
caching allocator. A chain of launches uses slot after slot, so every launch reads its weights and inputs from DRAM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import cupy

from tuner.core.problem.dtype import ELEMENTS
from tuner.core.problem.epilogue import Product
from tuner.core.problem.epilogue.part import drawn
from tuner.core.problem.epilogue.residual import residual_of
from tuner.core.problem.epilogue.sums import Known
from tuner.core.problem.ops.op import Role, Tensor
from tuner.core.problem.rows.dtype import DtypeRow, OperandRow
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import CacheState

from ...protocol.stopwatch import Stopwatch
from ...source.launch_args import OpBuffers
from ...source.parts import pointers_of
from .fitting import MIN_CHAIN, NUM_CHECKS, launches_of_chain, launches_that_evict, slots_that_fit
from .integrity import Region, region
from .op_data import DrawsOnCard, RunOperands, data_of, draw_bits, from_bits, of_sizes
from .outputs import GuardedOutput, bits_type
from .reference import Reference, references_of
from .segments import Segments
from .turned import Turned, TurnedCache
from .weights import draw_weights, known_weights

Array = Any  # a cupy.ndarray; CuPy has no type annotations

#: Seeds whose numbers are checked before the timing; one more is checked after it.
NUM_CHECK_SEEDS = NUM_CHECKS - 1


class _Tensors:
    """What the reference of an op reads: earlier references, inputs, weights, and the tensors of a cache."""

    def __init__(
        self, data: ProblemData, op: Product, inputs: Mapping[str, Array], made: Mapping[str, Reference]
    ) -> None:
        self._data, self._op, self._inputs, self._made = data, op, inputs, made

    def __getitem__(self, name: str) -> Known:
        if name in self._made:
            return Known(values=self._made[name].values, tolerance=self._made[name].tolerance)
        array, dtype = self._data._array(self._op, name, self._inputs), self._data.workload.elements_of(name)
        if name == f"{self._op.name}.weight":
            return Known(values=known_weights(self._op, array, self._data.workload.dtype))
        if array.dtype == bits_type(dtype):
            array = from_bits(array, dtype, as_type=cupy.float64)
        return Known(values=array)


def _address(array: Array | None) -> int:
    return 0 if array is None else int(array.data.ptr)


#: Slots in addition to those that fill three L2s.
_SPARE_SLOTS = 1


def guarded(tensor: Tensor) -> GuardedOutput:
    """Guarded memory for an additional output of a launch op."""
    return GuardedOutput(tensor.num_elements // tensor.shape[-1], tensor.shape[-1], element_of(tensor))


def element_of(tensor: Tensor) -> Dtype | DtypeRow:
    """The member of `Dtype`; for factors and integers, their row."""
    row = ELEMENTS[tensor.dtype]
    return Dtype(tensor.dtype) if isinstance(row, OperandRow) else row


class ProblemData:
    """All tensors of one problem."""

    def __init__(self, problem: Problem, l2_bytes: int, watch: Stopwatch) -> None:
        """Allocates and fills; about 2 GB for an FFN of an 8-billion-parameter model. `watch` is notified when the
        inputs exist, and when the references do.

        Raises:
            DoesNotFit: the card's free memory cannot hold one copy.
        """
        self.problem = problem
        self.workload: Workload = problem.workload
        self.l2_bytes = l2_bytes
        #: The data of each launch op.
        self.own = tuple(data_of(self.workload, op, problem.seed) for op in self.workload.launch_ops)
        self._segments = Segments(self)
        self.chain_length, num_slots = self._rotation()
        dtype, self._num_drawn = self.workload.dtype, 0
        self._random = cupy.random.default_rng(problem.seed)
        ops = self.workload.tile_ops
        #: The cache, by the name of the op that writes to it.
        self.caches = {op.name: self._cache_of(op) for op in ops if op.written_cache}
        #: Weights of parts of epilogues, by name.
        self._own = {
            name: drawn
            for op in ops
            for found in (self._drawn_parts(op, Role.WEIGHT, {}), self._drawn_others(op, Role.WEIGHT, {}))
            for name, drawn in found
        }
        #: Tensors that tile ops change in place.
        self._changed = tuple(one for op in ops for one in op.others(dtype) if one.role is Role.CACHE)
        self._weights = [[draw_weights(self._random, op, dtype) for op in ops] for _ in range(num_slots)]
        self._inputs = [self._slot_inputs() for _ in range(num_slots)]
        self._check_inputs = [self._draw_check_inputs(seed) for seed in range(NUM_CHECK_SEEDS + 1)]
        #: By check and name, the values of a tensor that a launch op changes in place, before each launch.
        self._before = [{name: inputs[name].copy() for name in self._in_place()} for inputs in self._check_inputs]
        written = self.workload.ops
        kept = [op for op in written if not self.workload.leaves(op)]
        beside = [one for own in self.own for one in own.outputs]
        beside += [one for op in ops for one in op.others(dtype) if one.role is Role.OUTPUT]
        shared = {op.name: GuardedOutput(op.m, op.c_columns, op.stored_in(dtype)) for op in kept}
        #: By slot and op, in the order in which they are written.
        self.outputs: list[dict[str, GuardedOutput]] = [
            {op.name: shared.get(op.name) or GuardedOutput(op.m, op.c_columns, op.stored_in(dtype)) for op in written}
            | {one.name: guarded(one) for one in beside}
            for _ in range(num_slots)
        ]
        cupy.cuda.Device().synchronize()
        watch.ended("inputs")
        #: By check and name, the references that depend only on the inputs.
        self.references = [self._segments.first(inputs) for inputs in self._check_inputs]
        self._segments.warm_up()
        cupy.cuda.Device().synchronize()
        watch.ended("references")
        self._flush = cupy.zeros(3 * l2_bytes // 4, dtype=cupy.uint32)

    @property
    def needs_flush(self) -> bool:
        """Whether the chain alone does not evict its own slots from the L2."""
        cold = self.problem.objective.l2 is CacheState.COLD
        return cold and self.chain_length < launches_that_evict(self.l2_bytes, self.workload.slot_bytes)

    @property
    def flush_buffer(self) -> Array:
        """A buffer of three times the L2, to be read."""
        return self._flush

    @property
    def num_slots(self) -> int:
        """Number of different slots; those of a chain's launches repeat."""
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
        pairs = [*zip(self.workload.tile_ops, self._weights[slot], strict=True)]
        weights = {f"{op.name}.{called}": w for op, w in pairs for called in ("weight", "w")}
        return RunOperands.of(self._op_buffers(slot, inputs), self._own | weights | inputs | written)

    def poison(self) -> None:
        """Sets everything that a checked launch must write to NaN, and caches to a value that shows which rows it
        writes.
        """
        for output in self.outputs[0].values():
            output.poison()
        for inputs, before in zip(self._check_inputs, self._before, strict=True):
            for name, array in before.items():
                inputs[name][...] = array
        for cache in self.caches.values():
            cache.poison(self._check_inputs)

    def written(self, name: str, seed_index: int) -> Array:
        """The bits [m, n] that a checked launch wrote for an op; for rotated heads: queries, keys and values."""
        if name in self._before[seed_index]:
            array = self._check_inputs[seed_index][name]
            return array.reshape(-1, array.shape[-1])
        bits = self.outputs[0][name].bits
        if name not in self.caches:
            return bits
        return self.caches[name].beside(bits, self._check_inputs[seed_index])

    def strayed(self, name: str, seed_index: int) -> str:
        """Where a checked launch wrote although it must not, apart from an op's output, as text; empty if nowhere."""
        if name not in self.caches:
            return ""
        return self.caches[name].strayed(self._check_inputs[seed_index])

    def wanted(self, seed_index: int) -> Iterator[tuple[str, Reference]]:
        """The correct results of a checked launch for each op, by name. Each must be checked before the next one is
        requested, since later references may start from the launch's output."""
        yield from self.references[seed_index].items()
        yield from self._segments.behind(seed_index)

    def inputs_of_check(self, seed_index: int) -> dict[str, Array]:
        """The inputs by name; those that launches change in place have their values from before."""
        return self._check_inputs[seed_index] | self._before[seed_index]

    def dtype_of(self, name: str) -> Dtype | DtypeRow:
        """The dtype of an output of a launch."""
        if name in self.outputs[0]:
            return self.outputs[0][name].dtype
        given = (*self._changed, *(one for own in self.own for one in own.given))
        return element_of(next(one for one in given if one.name == name))

    def _in_place(self) -> tuple[str, ...]:
        return (*(one.name for one in self._changed), *(name for own in self.own for name in own.in_place()))

    def _cache_of(self, op: TileOp) -> Turned:
        of_own = (cache for own in self.own if (cache := own.cache_of(op)))
        return next(of_own, None) or TurnedCache(op, self.workload.dtype)

    def regions(self) -> list[Region]:
        """All memory that no launch may write: operands, references, and the surroundings of the outputs."""
        ops = self.workload.tile_ops
        found = [region(f"the weight {name}", array) for name, array in self._own.items()]
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
        return [one for one in found if one.num_bytes]

    def _only_read(self, inputs: dict[str, Array]) -> list[tuple[str, Array]]:
        """Everything except squares, which a kernel before ours may write."""
        left = {f"{op.norm}.squares" for op in self.workload.tile_ops}
        left |= {tensor.name for own in self.own for tensor in own.given} | {one.name for one in self._changed}
        found = [(name, array) for name, array in inputs.items() if name not in left]
        return found + [one for own in self.own for one in own.only_read(inputs)]

    def _op_buffers(self, slot: int, inputs: dict[str, Array]) -> tuple[OpBuffers, ...]:
        outputs = self.outputs[slot]

        def address(name: str) -> int:
            """The address of a tensor; 0 for squares that an op writes, which belong to a candidate."""
            if name in outputs:
                return outputs[name].address
            return _address(inputs.get(name, self._own.get(name)))

        return tuple(
            OpBuffers(
                a=address(op.source),
                w=int(self._weights[slot][i].data.ptr),
                c=outputs[op.name].address,
                **{"bias": 0} | {part.slot: address(part.pointer(op)) for part in op.parts if part.slot},
                parts={one.name: address(one.tensor) for one in pointers_of(op)}
                | (self.caches[op.name].arguments(inputs) if op.name in self.caches else {}),
                m=op.m,
                n=op.n,
                k=op.k,
            )
            for i, op in enumerate(self.workload.tile_ops)
        )

    def _rotation(self) -> tuple[int, int]:
        """Launches of a chain, and slots over which they rotate."""
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
        fits = slots_that_fit(free_bytes, self._copy_bytes(), self._check_bytes())
        if self.problem.objective.l2 is CacheState.WARM:
            return MIN_CHAIN, 1
        wanted = launches_of_chain(self.l2_bytes, self.workload.slot_bytes)
        if self.own:  # caches are large, so there are only as many slots as make every launch cold
            fits = min(fits, launches_that_evict(self.l2_bytes, self.workload.slot_bytes) + _SPARE_SLOTS)
        return wanted, min(wanted, fits)

    def _copy_bytes(self) -> int:
        """Bytes of one slot's weights, inputs and outputs."""
        workload = self.workload
        others = sum(op.m * op.n + prod(op.source_shape) for op in workload.tile_ops) * workload.dtype.size_bytes
        others += sum(op.epilogue_bytes(workload.dtype) for op in workload.tile_ops)
        others += sum(one.num_bytes for op in workload.tile_ops for one in op.others(workload.dtype))
        weights = sum(op.weight_bytes(workload.dtype) for op in workload.tile_ops)
        return weights + others + sum(own.copy_bytes for own in self.own)

    def _check_bytes(self) -> int:
        """Zero, since checks have no tensor as large as a slot."""
        return sum(own.check_bytes for own in self.own)

    def _slot_inputs(self) -> dict[str, Array]:
        """Inputs of one slot. Those that products also read are drawn as the products need them."""
        own = [one.draw_slot() for one in self.own]
        return {name: array for found in (*own, self._draw_inputs()) for name, array in found.items()}

    def _draw_check_inputs(self, seed: int) -> dict[str, Array]:
        """Inputs of one check; every second check has unusual ones."""
        own = [one.draw_check(seed, self._inputs[0]) for one in self.own]
        of_products = self._draw_inputs(is_odd=seed % 2 == 1)
        return {name: array for found in (*own, of_products) for name, array in found.items()}

    def _draw_inputs(self, *, is_odd: bool = False) -> dict[str, Array]:
        """Inputs by tensor name, including residuals and row scales.

        Row scales are fp32 in [0.5, 2), since real ones are all near 1, so that a wrong row would not be noticed. For
        the same reason, rows of normalized inputs have different sizes. If `is_odd`, one of its channels is as large as
        in some models, and every second row is small.
        """
        inputs: dict[str, Array] = {}
        written = self.workload.written
        normed = {name for op in self.workload.tile_ops for name in self._normed_inputs(op)}
        for op in self.workload.tile_ops:
            if op.source not in written and op.source not in inputs:
                drawn = self._draw(op.source_shape, 1.0)
                inputs[op.source] = self._sized(op.source, drawn, is_odd=is_odd) if op.source in normed else drawn
            for name, drawn in self._drawn_parts(op, Role.INPUT, inputs):
                inputs[name] = self._sized(name, drawn, is_odd=is_odd) if name in normed else drawn
            for role in (Role.INPUT, Role.CACHE):
                inputs |= self._drawn_others(op, role, inputs)
        for cache in self.caches.values():
            inputs |= cache.draw(self._num_drawn)
        self._num_drawn += 1
        return inputs

    def _drawn_parts(self, op: Product, role: Role, there: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """What the op's epilogue reads in that role, by name, except what is already `there` and what an op writes."""
        names, draws = self.workload.written, self._draws(there)
        for part in op.parts:
            for tensor in () if part.changes_cache else part.tensors(op, self.workload.dtype):
                if tensor.role is not role or tensor.name in names or tensor.name in there:
                    continue
                if (drawn := part.draw(op, tensor, draws)) is not None:
                    yield tensor.name, drawn

    def _drawn_others(self, op: TileOp, role: Role, there: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """For an op that is not a product: its tensors with this role, except source and W, that no op writes."""
        draws = self._draws(there)
        for one in op.others(self.workload.dtype):
            if one.role is role and one.name not in self.workload.written and one.name not in there:
                yield one.name, drawn(one, draws)

    def _array(self, op: Product, name: str, inputs: Mapping[str, Array]) -> Array:
        """The tensor that the op reads by that name and no other op has written; weights are those of slot 0."""
        if name == f"{op.name}.weight":
            return self._weights[0][[one.name for one in self.workload.tile_ops].index(op.name)]
        if name in inputs or name in self._own:
            return inputs.get(name, self._own.get(name))
        return self.caches[op.name].array(name.removeprefix(f"{op.name}."), inputs)

    def _normed_inputs(self, op: TileOp) -> tuple[str, ...]:
        """The tensors that determine the size of the rows that the op normalizes: that input, or the inputs of the op
        that writes them.
        """
        producer = self.workload.norm_producer_of(self.workload.tile_ops.index(op))
        if producer is None:
            return (op.norm,)
        return self.workload.tile_ops[producer].source, residual_of(self.workload.tile_ops[producer])

    def _sized(self, name: str, bits: Array, *, is_odd: bool) -> Array:
        return of_sizes(bits, self.workload.elements_of(name), self.workload.dtype.row.largest, is_odd=is_odd)

    def _draws(self, there: Mapping[str, Array]) -> DrawsOnCard:
        return DrawsOnCard(self._random, self.workload.dtype, there)

    def _draw(self, shape: tuple[int, ...], scale: float) -> Array:
        return draw_bits(self._random, shape, scale, self.workload.dtype)

    def references_of(
        self, inputs: dict[str, Array], known: dict[str, Reference], op_indices: range
    ) -> dict[str, Reference]:
        """The outputs of the ops `op_indices` for these inputs, in addition to the `known` ones."""
        references = dict(known)
        for i in op_indices:
            op = self.workload.tile_ops[i]
            tensors = _Tensors(self, op, inputs, references)
            is_normed = self.workload.writes_squares(i)
            references |= references_of(cupy, op, tensors, self.workload.dtype, is_normed=is_normed)
        return references
