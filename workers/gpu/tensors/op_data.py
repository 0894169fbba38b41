"""The tensors of a launch op on the card, and the correct results of its launches.

Its kind's description of the tensors is usually enough: inputs are drawn, weights and arguments of a launch rotate from
slot to slot, and the kind's module ``numbers`` has the reference. A kind with other needs has ``data_of`` in its folder
``card``, which makes a subclass of `OpData`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import cupy
import numpy as np

from tuner.core.plan.graph.norm_slots import slot_stride
from tuner.core.problem.dtype import ELEMENTS, FP32, INT32, Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp, Role, Tensor
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.numbers import Expected, drawn
from tuner.errors import WorkerError

from ...source.launch_args import OpBuffers
from .outputs import bits_type
from .reference import Reference
from .turned import Turned

Array = Any  # a cupy.ndarray; CuPy has no type annotations
#: By tensor name, on the card: elements as unsigned integers of their size, factors as float32, integers as int32.
Arrays = Mapping[str, Array]


class RunOperands(tuple[OpBuffers, ...]):
    """The operands of a run: the addresses of each tile op, and the arrays of all ops by the names of their tensors."""

    arrays: Arrays

    @classmethod
    def of(cls, tile_ops: tuple[OpBuffers, ...], arrays: Arrays) -> RunOperands:
        """The operands of tile ops together with the arrays of all ops."""
        made = cls(tile_ops)
        made.arrays = arrays
        return made


def to_bits(values: Array, dtype: Dtype) -> Array:
    """float32 -> bits of the element type (nearest even), with the same shape."""
    return dtype.row.to_bits(cupy, values)


def from_bits(bits: Array, dtype: Dtype, *, as_type: Any = None) -> Array:
    """Bits of the element type -> float32 (or `as_type`), with the same shape."""
    return dtype.row.from_bits(cupy, bits).astype(as_type or cupy.float32)


def draw_bits(random: Any, shape: tuple[int, ...], scale: float, dtype: Dtype) -> Array:
    """Normally distributed numbers as bits; large arrays in pieces, since the generator draws in float32."""
    size, piece = math.prod(shape), 1 << 25
    bits = cupy.empty(size, dtype=bits_type(dtype))
    for begin in range(0, size, piece):
        count = min(piece, size - begin)
        values = random.standard_normal(count, dtype=cupy.float32) * cupy.float32(scale)
        bits[begin : begin + count] = to_bits(values, dtype)
    return bits.reshape(shape)


#: Difficult inputs of a norm, like a model's residual stream: all rows have one large channel, of the first size,
#: except small rows, which are scaled by the second.
LARGE_CHANNEL, SMALL_ROW = 3e4, 1e-3
#: The size of small rows where operands have a static scale.
SMALL_SCALED_ROW = 0.25


def of_sizes(bits: Array, dtype: Dtype, largest: float | None, *, is_odd: bool) -> Array:
    """The elements with rows of unequal sizes; `largest` is the size of operands with a static scale."""
    large, small = (LARGE_CHANNEL, SMALL_ROW) if largest is None else (largest / 4, SMALL_SCALED_ROW)
    values = from_bits(bits, dtype)
    rows = cupy.arange(values.shape[0])
    if is_odd:
        values[:, values.shape[1] // 3] = large * (rows % 2 == 0)
    sizes = cupy.where(rows % 2 == 1, small, 1.0) if is_odd else 0.5 + rows % 4
    return to_bits(values * sizes[:, None].astype(cupy.float32), dtype)


class DrawsOnCard:
    """`Draws` with one generator, for one slot or one check."""

    def __init__(self, random: Any, dtype: Dtype, inputs: Mapping[str, Array]) -> None:
        """`inputs` are already drawn."""
        self._random, self._dtype, self._inputs = random, dtype, inputs

    def normal(self, shape: tuple[int, ...], dtype: str = "") -> Array:
        """Elements, as bits."""
        return draw_bits(self._random, shape, 1.0, Dtype(dtype) if dtype else self._dtype)

    def factors(self, shape: tuple[int, ...]) -> Array:
        """fp32, from 0.5 to 2."""
        return 0.5 + 1.5 * self._random.random(shape, dtype=cupy.float32)

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> Array:
        """int32."""
        return self._random.integers(least, most, shape, dtype=cupy.int32, endpoint=True)

    def squares(self, name: str) -> Array | None:
        """Sums of the squares of an input's rows, with room for a whole vector after them."""
        if name not in self._inputs:
            return None
        sums = (from_bits(self._inputs[name], self._dtype, as_type=cupy.float64) ** 2).sum(axis=1)
        padded = cupy.zeros(slot_stride(sums.size), dtype=cupy.float32)
        padded[: sums.size] = sums
        return padded


def widened(bits: Array, dtype: str) -> Array:
    """Raw bits of `dtype`, widened to float64; integers as int64."""
    if dtype == INT32.name:
        return bits.astype(cupy.int64)
    if dtype == FP32.name:
        return bits.astype(cupy.float64)
    return from_bits(bits, Dtype(dtype), as_type=cupy.float64)


def on_card(values: np.ndarray[Any, Any], dtype: str) -> Array:
    """Drawn values on the card, as the element type stores them."""
    if dtype in (INT32.name, FP32.name):
        return cupy.asarray(values.astype(ELEMENTS[dtype].array_name))
    return cupy.asarray(Dtype(dtype).row.to_bits(np, values.astype(np.float32)))


class OpData:
    """The data of one launch op of a problem."""

    def __init__(self, workload: Workload, op: Any, seed: int) -> None:
        """`seed` is the problem's.

        Raises:
            WorkerError: its kind has no reference.
        """
        self.workload, self.op, self._seed = workload, op, seed
        self._numbers = part_of(op.KIND, "numbers")
        self._num_drawn = 0
        if type(self) is OpData and self._numbers is None:
            raise WorkerError(f"{op.describe()}: its kind has no file 'numbers', so its launches cannot be checked")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that the op reads and writes."""
        found: tuple[Tensor, ...] = self.op.tensors(self.workload.dtype)
        return found

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs other than the tensor that has the op's name."""
        return tuple(one for one in self.tensors if one.role is Role.OUTPUT and one.name != self.op.name)

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The inputs that no op of the workload writes."""
        written = self.workload.written
        return tuple(one for one in self.tensors if one.role is not Role.OUTPUT and one.name not in written)

    @property
    def read_from_ops(self) -> tuple[str, ...]:
        """The names of earlier ops whose outputs it reads."""
        written = self.workload.written
        return tuple(name for name in dict.fromkeys(self.op.read_names) if name in written)

    @property
    def copy_bytes(self) -> int:
        """Bytes of one slot, except its output."""
        return sum(one.num_bytes for one in (*self.given, *self.outputs))

    @property
    def check_bytes(self) -> int:
        """Bytes of the checks' tensors that are as large as a slot."""
        return sum(one.num_bytes for one in self.given if one.role is Role.CACHE)

    def draw_slot(self) -> dict[str, Array]:
        """The inputs of a timed launch, for one slot."""
        return self._drawn(0)

    def draw_check(self, seed: int, first: Arrays) -> dict[str, Array]:
        """The inputs of a checked launch; `first` are the arrays of the first slot, whose weights it shares."""
        found = self._drawn(seed)
        return found | {one.name: first[one.name] for one in self.given if one.role is Role.WEIGHT}

    def _drawn(self, turn: int) -> dict[str, Array]:
        random = np.random.default_rng((self._seed, self._num_drawn))
        self._num_drawn += 1
        return {one.name: self._made(one, turn, random) for one in self.given}

    def _made(self, tensor: Tensor, turn: int, random: np.random.Generator) -> Array:
        assert self._numbers is not None, self.op.KIND
        if hasattr(self._numbers, "draw") or tensor.dtype in (INT32.name, FP32.name):
            return on_card(drawn(self._numbers, self.op, tensor, turn, random), tensor.dtype)
        seed = int(random.integers(2**31))  # on the card, since a weight may be large
        return draw_bits(cupy.random.default_rng(seed), tensor.shape, 1.0, Dtype(tensor.dtype))

    def references(self, inputs: Arrays, read: Arrays) -> dict[str, Reference]:
        """The correct value of each tensor that a launch writes; `read` are the rows of earlier ops that it starts
        from, as bits."""
        assert self._numbers is not None, self.op.KIND
        dtypes = {one.name: one.dtype for one in self.tensors}
        given = {name: widened(array, dtypes[name]) for name, array in {**inputs, **read}.items() if name in dtypes}
        found: Mapping[str, Expected] = self._numbers.reference(self.op, given, self.workload.dtype, cupy)
        missing = {one.name for one in self.tensors if one.role is Role.OUTPUT} - set(found)
        if missing:
            raise WorkerError(f"{self.op.describe()}: its reference does not define {', '.join(sorted(missing))}")
        columns = {one.name: one.shape[-1] for one in self.tensors} | {self.op.name: self.op.c_columns}
        return {name: _reference(expected, columns[name]) for name, expected in found.items()}

    def in_place(self) -> tuple[str, ...]:
        """Tensors that a launch may change: before each checked launch they have their drawn values."""
        return tuple(one.name for one in self.given if one.role is Role.CACHE)

    def only_read(self, inputs: Arrays) -> list[tuple[str, Array]]:
        """The op's own inputs of a slot or a check that no launch may write, by name."""
        changed = self.in_place()
        return [(one.name, inputs[one.name]) for one in self.given if one.name not in changed]

    def cache_of(self, op: Any) -> Turned | None:
        """The cache to which a product before this op writes keys and values, if it is this op's."""
        return None


def _reference(expected: Expected, columns: int) -> Reference:
    """The reference as matrices with `columns` columns."""
    values = cupy.asarray(expected.values, dtype=cupy.float64)
    tolerance = 0.0 if expected.tolerance is None else expected.tolerance
    wide = cupy.broadcast_to(cupy.asarray(tolerance, dtype=cupy.float32), values.shape)
    return Reference(
        values=cupy.ascontiguousarray(values.reshape(-1, columns)),
        tolerance=cupy.ascontiguousarray(wide.reshape(-1, columns)),
    )


def data_of(workload: Workload, op: LaunchOp, seed: int) -> OpData:
    """The data of a launch op, by its kind.

    Raises:
        WorkerError: its kind does not define the correct results of a launch.
    """
    card = part_of(op.KIND, "card")
    if card is not None and hasattr(card, "data_of"):
        made: OpData = card.data_of(workload, op, seed)
        return made
    return OpData(workload, op, seed)
