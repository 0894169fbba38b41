"""What is asked: a DAG of tiled ops over named tensors, of which a dependent pair of GEMMs is the smallest case."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from tuner.core.problem.attention_op import ATTENTION, AttentionOp, check_attentions
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

    Products are `ops`. An attention that one of them reads is among `attentions`: its launch is one of its own, and for
    the products' plans its output is an input.
    """

    #: Shape of the DAG.
    kind: WorkloadKind
    #: The products in topological order: an op reads only inputs and outputs of earlier ops.
    ops: tuple[GemmOp, ...]
    #: Of every tensor.
    dtype: Dtype = Dtype.FP16
    #: The attentions, in topological order too.
    attentions: tuple[AttentionOp, ...] = ()

    def __post_init__(self) -> None:
        if not self.num_ops:
            raise InvalidInput("ops", "the workload has no op", "give at least one")
        if self.num_ops > MAX_OPS:
            problem = f"{self.num_ops} ops, and a kernel has room for {MAX_OPS}"
            raise InvalidInput("ops", problem, f"give at most {MAX_OPS}: cut the chain, and tune each run by itself")
        flows = [Flow(op.name, (op.m, op.c_columns), op.reads, op.operands) for op in self.all_ops]
        check_names(flows)
        check_dataflow(flows)
        self._check_rotary()
        if self.attentions:
            products = {op.name for op in self.ops}
            check_attentions(self.attentions, [flow for flow in flows if flow.name in products], self.dtype)

    def _check_rotary(self) -> None:
        """That at most one op is turned, and that nobody here reads it.

        Raises:
            InvalidInput: names the op, and what would be right.
        """
        turned = [op for op in self.ops if op.rotary]
        if len(turned) > 1:
            problem = f"{turned[0].name} and {turned[1].name} both write to a cache, and a kernel has one such op"
            raise InvalidInput("ops", problem, "cut the chain between them, and tune each run by itself")
        for op in turned:
            if reader := next(
                (one.name for one in self.all_ops if op.name in {read.tensor for read in one.reads}), None
            ):
                problem = f"{reader} reads {op.name}, whose keys and values go to a cache"
                remedy = "let an attention of the launch behind read its queries, or leave rotary out"
                raise InvalidInput("ops", problem, remedy)

    @property
    def rotary_op(self) -> int | None:
        """Index of the product that is turned and writes to a cache; None where there is none."""
        return next((index for index, op in enumerate(self.ops) if op.rotary), None)

    def reader_of(self, attention: AttentionOp) -> GemmOp | None:
        """The product that reads the attention's output; None where there is none."""
        return next((op for op in self.ops if attention.name in op.tensors), None)

    @property
    def num_ops(self) -> int:
        """Products and attentions."""
        return len(self.ops) + len(self.attentions)

    @property
    def all_ops(self) -> tuple[GemmOp | AttentionOp, ...]:
        """In topological order; an attention stands in front of the first product that reads it."""
        left, found = list(self.attentions), list[GemmOp | AttentionOp]()
        for op in self.ops:
            found += [one for one in left if one.name in op.tensors]
            left = [one for one in left if one not in found]
            found.append(op)
        return (*found, *left)

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
        """Indices of all ops whose outputs op `op_index` reads, as A or in its epilogue, ascending."""
        tensors = self.ops[op_index].tensors
        return tuple(i for i, op in enumerate(self.ops) if op.name in tensors)

    @property
    def is_independent(self) -> bool:
        """Whether there are several products, and none reads another's output: their tiles may run side by side."""
        return len(self.ops) > 1 and not any(map(self.is_read, range(len(self.ops))))

    def writes_squares(self, op_index: int) -> bool:
        """Whether op `op_index` writes the sums of squares of its rows, since a norm needs them."""
        return any(op.norm == self.ops[op_index].name for op in self.ops)

    def is_read(self, op_index: int) -> bool:
        """Whether an op of the workload reads the output of op `op_index`, as A or in its epilogue."""
        return any(self.ops[op_index].name in op.tensors for op in self.ops)

    def leaves(self, op_index: int) -> bool:
        """Whether the caller reads the output of op `op_index`."""
        op = self.numbered_ops[op_index]
        if isinstance(op, AttentionOp):
            return self.reader_of(op) is None
        return op.is_output or not self.is_read(op_index)

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
        outputs = sum(op.m * op.result_columns for i, op in enumerate(self.ops) if self.leaves(i))
        outputs += sum(op.m * op.n for op in self.attentions if self.reader_of(op) is None)
        return self.compulsory_read_bytes + outputs * self.dtype.size_bytes

    @property
    def compulsory_read_bytes(self) -> int:
        """The part of `compulsory_bytes` that is read."""
        names = {op.name for op in self.all_ops}
        reads = (read for op in self.all_ops for read in op.reads if read.field != "norm")
        given = {read.tensor: read.shape[0] * read.shape[1] for read in reads}
        inputs = sum(size for tensor, size in given.items() if tensor not in names) * self.dtype.size_bytes
        epilogues = sum(map(self.own_epilogue_bytes, range(len(self.ops))))
        return inputs + epilogues + self.weight_bytes + self.cache_bytes

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
        return {"kind": self.kind, "ops": [op.to_json() for op in self.all_ops], "dtype": self.dtype}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a size, a name or the topological order is wrong.
        """
        dtype, gemms, attentions = Dtype(data["dtype"]), list[GemmOp](), list[AttentionOp]()
        for op in data["ops"]:
            if op.get("op") == ATTENTION:
                attentions.append(AttentionOp.from_json(op, dtype))
            else:
                gemms.append(GemmOp.from_json(op))
        kind = WorkloadKind(data["kind"])
        return cls(kind=kind, ops=tuple(gemms), dtype=dtype, attentions=tuple(attentions))

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
            behind = "".join(f" -> {op.result_columns}{' rotary' if op.rotary else ''}" for op in self.ops)
            return f"attention {self.dtype} {self.attentions[0].describe(with_rows=with_rows)}{behind}"
        dims = " -> ".join(str(d) for d in (self.ops[0].k, *(op.result_columns for op in self.ops)))
        extras = [str(op.activation) for op in self.ops if op.activation is not Activation.IDENTITY]
        shown = ("bias", "gated", "residual", "row_scale", "norm", "rotary")
        extras += [name for name in shown if any(getattr(op, name) for op in self.ops)]
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
