"""What is asked: a DAG of tiled ops over named tensors, of which a dependent pair of GEMMs is the smallest case."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from tuner.core.problem.attention_op import ATTENTION, AttentionOp
from tuner.core.problem.attention_place import check_attentions, check_turned
from tuner.core.problem.dataflow import Flow, check_dataflow, check_names
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gemm_op import (
    DEFAULT_EPS,
    MAX_ELEMENTS,
    ROW_SCALE_BYTES,
    Activation,
    GemmOp,
    drop_defaults_of_chains,
)
from tuner.core.problem.rotary import WITH_ATTENTION
from tuner.errors import InvalidInput

__all__ = [
    "DEFAULT_EPS",
    "MAX_ELEMENTS",
    "MAX_OPS",
    "ROW_SCALE_BYTES",
    "Activation",
    "Dtype",
    "GemmOp",
    "Workload",
    "WorkloadKind",
    "drop_defaults_of_chains",
    "ffn_pair",
    "independent_pair",
]

#: Most ops of a workload.
MAX_OPS = 8


class WorkloadKind(StrEnum):
    """The shape of the DAG."""

    #: Two GEMMs, the second reads the first one's output.
    FFN = "ffn"
    #: Two GEMMs that share nothing.
    INDEPENDENT = "independent"
    #: Any other list of ops in topological order.
    CHAIN = "chain"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Ops in topological order, one element type.

    Products are `ops`. An attention is among `attentions`: its launch is one of its own, and for the products' plans
    its output is an input. It stands behind the first `num_in_front` products, and in front of the others.
    """

    #: Shape of the DAG.
    kind: WorkloadKind
    #: The products in topological order: an op reads only inputs and outputs of earlier ops.
    ops: tuple[GemmOp, ...]
    #: Of every tensor.
    dtype: Dtype = Dtype.FP16
    #: The attentions, in topological order too.
    attentions: tuple[AttentionOp, ...] = ()
    #: Products that stand in front of the attention, whose launch no launch of products spans. It stays where the
    #: products are looked at alone, without the attention.
    num_in_front: int = 0

    def __post_init__(self) -> None:
        if not self.num_ops:
            raise InvalidInput("ops", "the workload has no op", "give at least one")
        if self.num_ops > MAX_OPS:
            problem = f"{self.num_ops} ops, and a kernel has room for {MAX_OPS}"
            raise InvalidInput("ops", problem, f"give at most {MAX_OPS}: cut the chain, and tune each run by itself")
        if not 0 <= self.num_in_front <= len(self.ops):
            problem = f"{self.num_in_front} products in front of the attention, and there are {len(self.ops)}"
            raise InvalidInput("num_in_front", problem, f"give 0 to {len(self.ops)}")
        flows = [Flow(op.name, (op.m, op.c_columns), op.reads, self.operands_of(op)) for op in self.all_ops]
        check_names(flows)
        check_turned(self.ops, self.attentions)
        check_dataflow(flows)
        if self.attentions:
            products = {op.name for op in self.ops}
            behind = [flow for flow in flows if flow.name in products][self.num_in_front :]
            check_attentions(self.attentions, behind, self.dtype)

    @property
    def rotary_op(self) -> int | None:
        """Index of the product that is turned and writes to a cache; None where there is none."""
        return next((index for index, op in enumerate(self.ops) if op.rotary), None)

    @property
    def turned_for(self) -> AttentionOp | None:
        """The attention that reads what the turned product makes, and so the cache that this writes to; None where
        that is read by another workload."""
        turned = {op.name for op in self.ops if op.rotary}
        return next((one for one in self.attentions if one.source in turned), None)

    def operands_of(self, op: GemmOp | AttentionOp) -> tuple[str, ...]:
        """The names of the op's own tensors. A cache has one name: that of the attention that reads it here."""
        reader = self.turned_for
        if reader is None or not isinstance(op, GemmOp) or not op.rotary:
            return op.operands
        shared = {f"{op.name}.{name}" for name in WITH_ATTENTION}
        return tuple(name for name in op.operands if name not in shared)

    def cache_name_of(self, op: GemmOp) -> str:
        """In front of ``.keys``, ``.values`` and ``.lengths`` of the cache that a turned product writes to."""
        reader = self.turned_for
        return op.name if reader is None else reader.name

    @property
    def forced_start(self) -> int | None:
        """The product with which a launch has to begin, since the attention's launch stands between it and the product
        before; None where there are no products on both sides."""
        return self.num_in_front if 0 < self.num_in_front < len(self.ops) else None

    @property
    def sides(self) -> tuple[tuple[int, ...], ...]:
        """The products of each side of the attention, as far as there are any: no launch has ops of both."""
        sides = (range(self.num_in_front), range(self.num_in_front, len(self.ops)))
        return tuple(tuple(side) for side in sides if side)

    @cached_property
    def products(self) -> Workload:
        """Its products alone: an attention's output is an input. Where they are cut stays known."""
        return replace(self, attentions=()) if self.attentions else self

    def reader_of(self, attention: AttentionOp) -> GemmOp | None:
        """The product that reads the attention's output; None where there is none."""
        return next((op for op in self.ops if attention.name in op.tensors), None)

    @property
    def num_ops(self) -> int:
        """Products and attentions."""
        return len(self.ops) + len(self.attentions)

    @property
    def all_ops(self) -> tuple[GemmOp | AttentionOp, ...]:
        """In topological order, which is that of their launches."""
        return (*self.ops[: self.num_in_front], *self.attentions, *self.ops[self.num_in_front :])

    @property
    def numbered_ops(self) -> tuple[GemmOp | AttentionOp, ...]:
        """By index: the products, and behind them the attentions."""
        return (*self.ops, *self.attentions)

    @property
    def num_rows(self) -> int:
        """Most rows of an op's output."""
        return max(op.m for op in self.all_ops)

    def op_index(self, name: str) -> int | None:
        """Index of the product called `name`, or None where `name` is an input of the workload, or an attention."""
        return next((i for i, op in enumerate(self.ops) if op.name == name), None)

    def producer_of(self, op_index: int) -> int | None:
        """Index of the op whose output op `op_index` reads, or None where it reads an input."""
        return self.op_index(self.ops[op_index].source)

    def consumers_of(self, op_index: int) -> tuple[int, ...]:
        """Indices of the ops that read the output of op `op_index` as A."""
        name = self.ops[op_index].name
        return tuple(i for i, op in enumerate(self.ops) if op.source == name)

    def residual_producer_of(self, op_index: int) -> int | None:
        """Index of the op whose output op `op_index` adds, or None where it adds an input, or nothing."""
        return self.op_index(self.ops[op_index].residual_source)

    def norm_producer_of(self, op_index: int) -> int | None:
        """Index of the op whose output's norm scales the rows of op `op_index`, or None."""
        return self.op_index(self.ops[op_index].norm)

    def producers_of(self, op_index: int) -> tuple[int, ...]:
        """Indices of all ops whose outputs op `op_index` reads, as A or in its epilogue, or through an attention that
        it reads; ascending."""
        tensors = set(self.ops[op_index].tensors)
        tensors |= {attention.source for attention in self.attentions if attention.name in tensors}
        return tuple(i for i, op in enumerate(self.ops) if op.name in tensors)

    @property
    def is_independent(self) -> bool:
        """Whether there are several products, and none reads another's output, nor an attention between them: their
        tiles may run side by side."""
        return len(self.ops) > 1 and not self.num_in_front and not any(map(self.is_read, range(len(self.ops))))

    def writes_squares(self, op_index: int) -> bool:
        """Whether op `op_index` writes the sums of squares of its rows, since a norm needs them."""
        return any(op.norm == self.ops[op_index].name for op in self.ops)

    def is_read(self, op_index: int) -> bool:
        """Whether an op of the workload reads the output of op `op_index`: as A, in its epilogue, or as queries."""
        name = self.ops[op_index].name
        return any(name in op.tensors for op in self.ops) or any(name == one.source for one in self.attentions)

    def op_named(self, name: str) -> GemmOp | AttentionOp:
        """The op of that name."""
        return next(op for op in self.all_ops if op.name == name)

    def leaves(self, op: GemmOp | AttentionOp) -> bool:
        """Whether the caller reads the op's output."""
        is_output = isinstance(op, GemmOp) and op.is_output
        return is_output or not any(op.name in other.tensors for other in self.all_ops)

    @property
    def num_flops(self) -> int:
        """Of all ops."""
        return sum(op.num_flops for op in self.all_ops)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weight matrices."""
        return sum(op.weight_rows * op.k for op in self.ops) * self.dtype.size_bytes

    @property
    def rotated_bytes(self) -> int:
        """What is cold when a timed launch begins: weights, and the caches that it reads."""
        return self.weight_bytes + self.cache_bytes

    @property
    def cache_bytes(self) -> int:
        """Keys and values that a timed launch of each attention has to read."""
        return sum(op.cache_bytes for op in self.attentions)

    @property
    def compulsory_bytes(self) -> int:
        """Fewest bytes through DRAM with cold caches: each input and weight read once, each final output written
        once; intermediates stay in the cache."""
        written = (op.result_columns - (0 if self.leaves(op) else op.c_columns) for op in self.ops)
        outputs = sum(op.m * columns for op, columns in zip(self.ops, written, strict=True))
        outputs += sum(op.m * op.n for op in self.attentions if self.leaves(op))
        return self.compulsory_read_bytes + outputs * self.dtype.size_bytes

    @property
    def compulsory_read_bytes(self) -> int:
        """The part of `compulsory_bytes` that is read."""
        names = {op.name for op in self.all_ops}
        reads = (read for op in self.all_ops for read in op.reads if read.field != "norm")
        given = {read.tensor: read.shape[0] * read.shape[1] for read in reads}
        inputs = sum(size for tensor, size in given.items() if tensor not in names) * self.dtype.size_bytes
        epilogues = sum(map(self.own_epilogue_bytes, range(len(self.ops))))
        return inputs + epilogues + self.weight_bytes + self.cache_bytes - self._new_cache_bytes

    @property
    def _new_cache_bytes(self) -> int:
        """Keys and values that an attention reads, and a product of the workload writes: no need to fetch them."""
        turned = {op.name: op.result_columns - op.c_columns for op in self.ops if op.rotary}
        return sum(op.m * turned.get(op.source, 0) for op in self.attentions) * self.dtype.size_bytes

    def own_epilogue_bytes(self, op_index: int) -> int:
        """Bytes of what the epilogue of op `op_index` reads that is no named tensor: bias, a residual of its own, and
        factors, or sums of squares of an input's rows."""
        op = self.ops[op_index]
        in_dtype = op.bias * op.weight_rows + (op.residual and not op.residual_source) * op.m * op.n
        vectors = op.row_scale or (bool(op.norm) and self.norm_producer_of(op_index) is None)
        return in_dtype * self.dtype.size_bytes + vectors * op.m * ROW_SCALE_BYTES

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse.

        What came later is left out while it has its default, so that digests outlive new options.
        """
        data = {"kind": self.kind, "ops": [op.to_json() for op in self.all_ops], "dtype": self.dtype}
        return data | ({"num_in_front": self.num_in_front} if self.num_in_front and not self.attentions else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a size, a name or the topological order is wrong.
        """
        dtype, gemms, attentions = Dtype(data["dtype"]), list[GemmOp](), list[AttentionOp]()
        num_in_front = data.get("num_in_front", 0)
        for op in data["ops"]:
            if op.get("op") == ATTENTION:
                num_in_front = num_in_front if attentions else len(gemms)
                attentions.append(AttentionOp.from_json(op, dtype))
            elif "op" in op:
                raise InvalidInput("op", f"is {op['op']!r}", f"give {ATTENTION}, or leave it out for a product")
            else:
                gemms.append(GemmOp.from_json(op))
        kind = WorkloadKind(data["kind"])
        return cls(kind=kind, ops=tuple(gemms), dtype=dtype, attentions=tuple(attentions), num_in_front=num_in_front)

    @property
    def digest(self) -> str:
        """16 hex digits that name this workload."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self, *, with_rows: bool = True) -> str:
        """One line in words, e.g. ``ffn fp16 M=16 4096 -> 14336 -> 4096 relu``; on demand for any number of rows."""
        if self.kind is WorkloadKind.INDEPENDENT:
            shapes = " beside ".join(f"[{op.m}, {op.n}, {op.k}]" for op in self.ops)
            return f"{self.kind} {self.dtype} {shapes}"
        if self.attentions:
            made = [f"{op.result_columns}{f' {op.rotary.describe()}' if op.rotary else ''}" for op in self.ops]
            front, behind = made[: self.num_in_front], made[self.num_in_front :]
            front = [str(self.ops[0].k), *front] if front else []
            steps = [*front, self.attentions[0].describe(with_rows=with_rows), *behind]
            return f"attention {self.dtype} {' -> '.join(steps)}"
        dims = " -> ".join(str(d) for d in (self.ops[0].k, *(op.result_columns for op in self.ops)))
        extras = [str(op.activation) for op in self.ops if op.activation is not Activation.IDENTITY]
        shown = ("bias", "gated", "residual", "row_scale", "norm")
        extras += [name for name in shown if any(getattr(op, name) for op in self.ops)]
        extras += [op.rotary.describe() for op in self.ops if op.rotary]
        rows = [f"M={self.ops[0].m}"] if with_rows else []
        return " ".join([str(self.kind), str(self.dtype), *rows, dims, *extras])


def ffn_pair(
    *,
    m: int,
    d_in: int,
    d_hidden: int,
    d_out: int,
    dtype: Dtype = Dtype.FP16,
    activation: Activation = Activation.IDENTITY,
    bias: bool = False,
    gated: bool = False,
    residual: bool = False,
    row_scale: bool = False,
) -> Workload:
    """Y[m, d_out] = activation(s X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2 + R[m, d_out].

    Where `gated`, W1 is [2 d_hidden, d_in] and b1 [2 d_hidden], gate first; `residual` adds R, `row_scale` is s.
    """
    up = GemmOp(name="up", m=m, n=d_hidden, k=d_in, activation=activation, bias=bias, gated=gated, row_scale=row_scale)
    down = GemmOp(name="down", m=m, n=d_out, k=d_hidden, source="up", bias=bias, residual=residual)
    return Workload(kind=WorkloadKind.FFN, ops=(up, down), dtype=dtype)


def independent_pair(
    first_mnk: tuple[int, int, int], second_mnk: tuple[int, int, int], *, dtype: Dtype = Dtype.FP16
) -> Workload:
    """Two GEMMs C = A W^T that share nothing, each given as (m, n, k)."""
    ops = tuple(
        GemmOp(name=name, m=m, n=n, k=k, source=f"x_{name}")
        for name, (m, n, k) in (("first", first_mnk), ("second", second_mnk))
    )
    return Workload(kind=WorkloadKind.INDEPENDENT, ops=ops, dtype=dtype)
