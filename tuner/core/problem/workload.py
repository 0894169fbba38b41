"""What to compute: a DAG of ops over named tensors; a dependent pair of GEMMs is the smallest case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

from tuner.core.json_form import JsonForm
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue import Product
from tuner.core.problem.epilogue.norm import DEFAULT_EPS
from tuner.core.problem.epilogue.part import ROW_SCALE_BYTES
from tuner.core.problem.op_kinds import named_kinds, op_from_json
from tuner.core.problem.ops.codec import fields_of
from tuner.core.problem.ops.dataflow import Flow, check_dataflow, check_names
from tuner.core.problem.ops.kv_cache import OF_CACHE
from tuner.core.problem.ops.op import LaunchOp, Op, Role, Tensor, form_problem, range_problem
from tuner.core.problem.rows.added import needed_rows
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.unknown_op import UnknownOp
from tuner.errors import InvalidInput

__all__ = [
    "DEFAULT_EPS",
    "MAX_OPS",
    "ROW_SCALE_BYTES",
    "Activation",
    "Dtype",
    "Op",
    "Workload",
    "WorkloadKind",
]

#: Maximum number of ops in a workload.
MAX_OPS = 8


class WorkloadKind(StrEnum):
    """The shape of the DAG."""

    #: Two GEMMs, the second of which reads the output of the first.
    FFN = "ffn"
    #: Two independent GEMMs.
    INDEPENDENT = "independent"
    #: Any other list of ops in topological order.
    CHAIN = "chain"


def _flow(op: Op, operands: tuple[str, ...]) -> Flow:
    made = tuple((one.name, one.rows_and_columns) for one in op.made)
    return Flow(op.name, (op.m, op.c_columns), op.reads, operands, made, op.changed)


def _written(op: Op) -> set[str]:
    return {op.name, *(one.name for one in op.made)}


def _check_forms(op: Op, dtype: Dtype) -> None:
    for tensor in op.tensors(dtype):
        if problem := form_problem(tensor):
            raise InvalidInput(tensor.name, problem, f"the package with {op.KIND} must change it, or use other sizes")


def _check_ranges(op: Op, workload: Workload) -> None:
    for tensor in op.tensors(workload.dtype):
        if problem := range_problem(tensor, is_written=tensor.name in workload.written):
            remedy = f"the package with {op.KIND} must give the range of an int32"
            raise InvalidInput(tensor.name, problem, remedy)


def _is_left(tensor: Tensor) -> bool:
    return tensor.role in (Role.OUTPUT, Role.CACHE)


@dataclass(frozen=True, kw_only=True)
class Workload(JsonForm):
    """Ops in topological order, which is also the order of their launches; one element type.

    A *tile op*, e.g. a product, may share a launch with others; plans index ops by their position in `tile_ops`. A
    *launch op* has its own launch; for plans, its output is an input.
    """

    #: Shape of the DAG.
    kind: WorkloadKind
    #: An op reads only inputs and outputs of earlier ops.
    ops: tuple[Op, ...]
    #: Element type of every tensor.
    dtype: Dtype = Dtype.FP16

    def __post_init__(self) -> None:
        if not self.ops:
            raise InvalidInput("ops", "the workload has no op", "pass at least one")
        if len(self.ops) > MAX_OPS:
            problem = f"{len(self.ops)} ops, but a kernel holds at most {MAX_OPS}"
            raise InvalidInput("ops", problem, f"use at most {MAX_OPS}: split the chain, and tune each run separately")
        if self.unknown_kinds:
            return  # checked by code that knows the kinds
        for op in self.ops:
            _check_forms(op, self.dtype)
        flows = [_flow(op, self.operands_of(op)) for op in self.ops]
        check_names(flows)
        for op in self.ops:
            op.check_shared(self.ops)
        check_dataflow(flows)
        for op in self.ops:
            op.check_place(self.ops, self.dtype)
            _check_ranges(op, self)

    @cached_property
    def unknown_kinds(self) -> tuple[str, ...]:
        """Unknown kinds of its ops: such a workload can be stored and shown, but not run."""
        return tuple(dict.fromkeys(op.kind for op in self.ops if isinstance(op, UnknownOp)))

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """What a process must have for it, in the form of `kind_versions`: kinds of ops, and whatever else comes from
        packages; sorted. What every process has is left out."""
        known = [op for op in self.ops if not isinstance(op, UnknownOp)]
        rows = needed_rows([self.dtype, *(getattr(op, one.name) for op in known for one in fields_of(type(op)))])
        return tuple(sorted({*named_kinds(self.ops), *rows}))

    @cached_property
    def tile_ops(self) -> tuple[TileOp, ...]:
        """Ops that may share a launch."""
        return tuple(op for op in self.ops if isinstance(op, TileOp))

    @cached_property
    def has_wide_products(self) -> bool:
        """Whether a tile of some op multiplies more rows of W than it has columns."""
        return any(op.rows_per_column > 1 for op in self.tile_ops)

    @cached_property
    def dtypes(self) -> tuple[Dtype, ...]:
        """Its element types: those of operands, and those of stored outputs of tile ops."""
        return tuple(dict.fromkeys((self.dtype, *(op.out_dtype or self.dtype for op in self.tile_ops))))

    def elements_of(self, tensor: str) -> Dtype:
        """The element type of a tile op's tensor; for a tensor of factors or integers, the workload's."""
        stored = self._element_types.get(tensor, "")
        return Dtype(stored) if stored in set(Dtype) else self.dtype

    @cached_property
    def _element_types(self) -> Mapping[str, str]:
        """By name, the element types of all tensors of tile ops, as the writer or first reader declares them."""
        found: dict[str, str] = {}
        for op in self.tile_ops:
            for tensor in op.tensors(self.dtype):
                found.setdefault(tensor.name, tensor.dtype)
        return found

    @cached_property
    def own_tile_ops(self) -> tuple[int, ...]:
        """Indices of the tile ops that are not products."""
        return tuple(index for index, op in enumerate(self.tile_ops) if not op.IS_PRODUCT)

    @cached_property
    def launch_ops(self) -> tuple[Any, ...]:
        """Ops with their own launches, each a `LaunchOp` of its kind."""
        return tuple(op for op in self.ops if isinstance(op, LaunchOp))

    @cached_property
    def tile_places(self) -> tuple[int, ...]:
        """Index in `ops` of each tile op."""
        return tuple(place for place, op in enumerate(self.ops) if isinstance(op, TileOp))

    @cached_property
    def launch_places(self) -> tuple[int, ...]:
        """Index in `ops` of each launch op."""
        return tuple(place for place in range(len(self.ops)) if place not in self.tile_places)

    def tile_ops_before(self, op: Op) -> int:
        """Number of tile ops before an op."""
        return sum(isinstance(other, TileOp) for other in self.ops[: self.ops.index(op)])

    @cached_property
    def borders(self) -> tuple[int, ...]:
        """Number of tile ops before each launch op, except one that is the first op; no launch spans these
        positions."""
        return tuple(filter(None, map(self.tile_ops_before, self.launch_ops)))

    @property
    def cache_op(self) -> int | None:
        """Index of the tile op that writes to a cache; None if there is none."""
        return next((index for index, op in enumerate(self.tile_ops) if op.written_cache), None)

    @property
    def turned_for(self) -> Op | None:
        """The op with a cache that reads the rotary product's output, and thereby the cache that the product writes to;
        None if another workload reads it."""
        turned = {op.name for op in self.ops if op.written_cache}
        return next((one for one in self.ops if turned & set(one.read_names) and one.has_cache), None)

    def operands_of(self, op: Op) -> tuple[str, ...]:
        """The names of the op's own tensors. A cache has one name: that of the op that reads it in this workload."""
        reader = self.turned_for
        if reader is None or not op.written_cache:
            return op.operands
        shared = {f"{op.name}.{name}" for name in OF_CACHE}
        return tuple(name for name in op.operands if name not in shared)

    def cache_name_of(self, op: Product) -> str:
        """Prefix of ``.keys``, ``.values`` and ``.lengths`` for the cache that a rotary product writes to."""
        reader = self.turned_for
        return op.name if reader is None else reader.name

    @property
    def forced_starts(self) -> tuple[int, ...]:
        """Tile ops at which a launch must begin, since another op's launch is between them and the previous tile
        op."""
        return tuple(dict.fromkeys(border for border in self.borders if border < len(self.tile_ops)))

    @property
    def sides(self) -> tuple[tuple[int, ...], ...]:
        """Groups of tile ops between the launches of other ops: no launch contains ops of two groups."""
        ends = dict.fromkeys((0, *self.borders, len(self.tile_ops)))
        return tuple(tuple(range(*side)) for side in pairwise(ends))

    def reader_of(self, written: Op) -> TileOp | None:
        """The tile op that reads an op's output; None if there is none."""
        names = _written(written)
        return next((op for op in self.tile_ops if names & set(op.read_names)), None)

    @cached_property
    def batch_size(self) -> int:
        """Maximum rows of an op's output, or the op's own batch size, which ops that share its tensors also have."""
        known = dict[str, int]()
        for op in sorted(self.ops, key=lambda op: op.batch_size is None):
            names = (*_written(op), *op.read_names)
            if size := op.batch_size or next((known[name] for name in names if name in known), 0):
                known |= dict.fromkeys(names, size)
        return max(known.get(op.name, op.m) for op in self.ops)

    def op_index(self, name: str) -> int | None:
        """Index of the tile op called `name`, or None if `name` is an input of the workload, or a launch op."""
        return self._indices.get(name)

    @cached_property
    def _indices(self) -> dict[str, int]:
        """Indices of the tile ops by name."""
        return {name: index for index, op in enumerate(self.tile_ops) for name in _written(op)}

    @cached_property
    def _normed(self) -> frozenset[str]:
        """Tensors whose norm scales the rows of an op."""
        return frozenset(op.norm for op in self.tile_ops)

    def producer_of(self, op_index: int) -> int | None:
        """Index of the op whose output op `op_index` reads as A; None if it is an input."""
        return self.op_index(self.tile_ops[op_index].source)

    def consumers_of(self, op_index: int) -> tuple[int, ...]:
        """Indices of the ops that read the output of op `op_index` as A."""
        names = _written(self.tile_ops[op_index])
        return tuple(i for i, op in enumerate(self.tile_ops) if op.source in names)

    def residual_producer_of(self, op_index: int) -> int | None:
        """Index of the op whose output op `op_index` adds, or None if it adds an input, or nothing."""
        return self.op_index(self.tile_ops[op_index].residual_source)

    def norm_producer_of(self, op_index: int) -> int | None:
        """Index of the op whose output's norm scales the rows of op `op_index`, or None."""
        return self.op_index(self.tile_ops[op_index].norm)

    def producers_of(self, op_index: int) -> tuple[int, ...]:
        """Indices of all ops whose outputs op `op_index` reads, as A or in its epilogue; ascending."""
        found = {self.op_index(name) for name in self.tile_ops[op_index].read_names}
        return tuple(sorted(index for index in found if index is not None))

    @property
    def is_independent(self) -> bool:
        """Whether there are several tile ops without dependencies or launch ops between them, so that their tiles may
        run concurrently."""
        count = len(self.tile_ops)
        return count > 1 and not self.borders and not any(map(self.producers_of, range(count)))

    def writes_squares(self, op_index: int) -> bool:
        """Whether op `op_index` writes the sums of squares of its rows, because a norm needs them."""
        return self.tile_ops[op_index].name in self._normed

    def op_named(self, name: str) -> Op:
        """The op called `name`."""
        return next(op for op in self.ops if op.name == name)

    def leaves(self, op: Op) -> bool:
        """Whether the caller reads the op's output."""
        return op.is_output or not self.is_read(op.name)

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of all tensors that ops write and others may read."""
        return frozenset(name for op in self.ops for name in _written(op))

    def is_read(self, tensor: str) -> bool:
        """Whether an op names it."""
        return any(tensor in op.read_names for op in self.ops)

    @property
    def num_flops(self) -> int:
        """Multiplications and additions of all ops."""
        return sum(op.num_flops for op in self.ops)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weight matrices."""
        return sum(op.weight_bytes(self.dtype) for op in self.ops)

    @property
    def rotated_bytes(self) -> int:
        """Bytes that are cold when a timed launch begins: weights, and the caches that it reads."""
        return self.weight_bytes + self.cache_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes that only one timed launch of a chain moves: rotated weights, inputs and outputs. All launches
        have the same intermediates."""
        return max(self.rotated_bytes, self.compulsory_bytes)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches that a timed launch has to read."""
        return sum(op.cache_bytes for op in self.ops)

    @property
    def compulsory_bytes(self) -> int:
        """Minimum bytes through DRAM with cold caches: each input and weight read once, each final output written
        once; intermediates stay in the cache."""
        columns = ((op, op.result_columns - (0 if self.leaves(op) else op.c_columns)) for op in self.ops)
        outputs = sum(op.m * count * op.stored_in(self.dtype).size_bytes for op, count in columns)
        beside = (one for op in self.tile_ops for one in op.others(self.dtype))
        own = sum(one.num_bytes for one in beside if _is_left(one) and not self.is_read(one.name))
        return self.compulsory_read_bytes + outputs + own

    @property
    def compulsory_read_bytes(self) -> int:
        """The part of `compulsory_bytes` that is read."""
        names = self.written
        reads = (read for op in self.ops for read in op.reads if read.field not in ("norm", "factors"))
        given = {read.tensor: read.shape[0] * read.shape[1] for read in reads}
        inputs = sum(size for tensor, size in given.items() if tensor not in names) * self.dtype.size_bytes
        own = sum(op.own_bytes(self.dtype, names) for op in self.ops)
        return inputs + own + self.weight_bytes + self.cache_bytes - self._new_cache_bytes

    @property
    def _new_cache_bytes(self) -> int:
        """Bytes of an op's cache that another op of the workload writes, so that they need not be loaded from DRAM."""
        written = {op.name: op.m * (op.result_columns - op.c_columns) for op in self.ops if op.written_cache}
        return sum(written.get(name, 0) for op in self.ops for name in op.read_names) * self.dtype.size_bytes

    def own_epilogue_bytes(self, op_index: int) -> int:
        """Bytes that the epilogue of tile op `op_index` reads and that belong to no named tensor."""
        return self.tile_ops[op_index].own_bytes(self.dtype, [op.name for op in self.ops])

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse.

        Fields that were added later are left out while they have their defaults, so that digests do not change.
        """
        return {"kind": self.kind, "ops": [op.to_json() for op in self.ops], "dtype": self.dtype}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a size, a name or the topological order is wrong.
        """
        dtype = Dtype(data["dtype"])
        ops = tuple(op_from_json(op, dtype) for op in data["ops"])
        return cls(kind=WorkloadKind(data["kind"]), ops=ops, dtype=dtype)

    @property
    def digest(self) -> str:
        """16 hex digits that identify this workload."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self, *, with_rows: bool = True) -> str:
        """One line of text, e.g. ``ffn fp16 M=16 4096 -> 14336 -> 4096 relu``; optionally for any number of rows."""
        if self.kind is WorkloadKind.INDEPENDENT:
            shapes = " beside ".join(f"[{op.m}, {op.n}, {op.k}]" for op in self.tile_ops)
            return f"{self.kind} {self.dtype} {shapes}"
        first = self.ops[0]
        read = [str(first.reads[0].shape[1])] if isinstance(first, TileOp) else []
        if self.launch_ops:
            made = (op.describe(with_rows=with_rows) for op in self.ops)
            return f"{self.launch_ops[0].KIND or self.kind} {self.dtype} {' -> '.join([*read, *made])}"
        dims = " -> ".join([*read, *(str(op.result_columns) for op in self.ops)])
        counted = first.BATCH_FIELD or "M"
        rows = [f"{counted}={first.batch_size or first.m}"] if with_rows else []
        kinds = dict.fromkeys(type(op) for op in self.ops)
        extras = (word for kind in kinds for word in kind.extras([op for op in self.ops if type(op) is kind]))
        return " ".join([str(self.kind), str(self.dtype), *rows, dims, *extras])
