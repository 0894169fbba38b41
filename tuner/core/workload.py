"""What is asked: a DAG of tiled ops over named tensors, of which a dependent pair of GEMMs is the smallest case."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from tuner.errors import InvalidInput

#: Element indices are int32 on the device.
MAX_ELEMENTS = 2**31 - 1


class Dtype(StrEnum):
    """Element type of every tensor; accumulation is always fp32."""

    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def size_bytes(self) -> int:
        """Bytes per element."""
        return 2


class Activation(StrEnum):
    """Elementwise function applied to an op's output, in fp32, before it is rounded.

    ``gelu`` is the tanh approximation, which is also what vendor libraries fuse.
    """

    IDENTITY = "identity"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"


class WorkloadKind(StrEnum):
    """The shape of the DAG."""

    #: Two GEMMs, the second reads the first one's output.
    FFN = "ffn"
    #: Two GEMMs that share nothing.
    INDEPENDENT = "independent"
    #: Any other list of ops in topological order.
    CHAIN = "chain"


@dataclass(frozen=True, kw_only=True)
class GemmOp:
    """C[m, n] = activation(A[m, k] W[n, k]^T + bias[n]), nn.Linear layout: every operand row-major, k contiguous."""

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of A and C, >= 1.
    m: int
    #: Rows of W, columns of C, >= 1.
    n: int
    #: Columns of A and W, >= 1.
    k: int
    #: The tensor read as A: an earlier op's name, or any other name for an input of the workload.
    source: str = "x"
    #: Applied in the epilogue.
    activation: Activation = Activation.IDENTITY
    #: Whether a bias vector [n] is added before the activation.
    bias: bool = False

    def __post_init__(self) -> None:
        for field in ("m", "n", "k"):
            value = getattr(self, field)
            if value < 1:
                raise InvalidInput(f"{self.name}.{field}", f"must be at least 1, got {value}", "give a positive size")
        for what, rows, columns in (("A", self.m, self.k), ("W", self.n, self.k), ("C", self.m, self.n)):
            if rows * columns > MAX_ELEMENTS:
                raise InvalidInput(
                    f"{self.name}.{what}",
                    f"{rows} x {columns} elements overflow a 32-bit index",
                    f"keep every matrix at or under {MAX_ELEMENTS} elements",
                )

    @property
    def num_flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Ops in topological order, one element type."""

    #: Shape of the DAG.
    kind: WorkloadKind
    #: In topological order: an op reads only inputs and outputs of earlier ops.
    ops: tuple[GemmOp, ...]
    #: Of every tensor.
    dtype: Dtype = Dtype.FP16

    def __post_init__(self) -> None:
        if not self.ops:
            raise InvalidInput("ops", "the workload has no op", "give at least one")
        seen: dict[str, GemmOp] = {}
        for op in self.ops:
            if op.name in seen or op.name == op.source:
                raise InvalidInput("ops", f"the name {op.name!r} is used twice", "give each op its own name")
            producer = seen.get(op.source)
            if producer is not None and (producer.m, producer.n) != (op.m, op.k):
                raise InvalidInput(
                    f"{op.name}.k",
                    f"reads {op.source} as [{op.m}, {op.k}], but it is [{producer.m}, {producer.n}]",
                    "make the consumer's m and k the producer's m and n",
                )
            seen[op.name] = op

    def op_index(self, name: str) -> int | None:
        """Index of the op called `name`, or None where `name` is an input of the workload."""
        return next((i for i, op in enumerate(self.ops) if op.name == name), None)

    def producer_of(self, op_index: int) -> int | None:
        """Index of the op whose output op `op_index` reads, or None where it reads an input."""
        return self.op_index(self.ops[op_index].source)

    def consumers_of(self, op_index: int) -> tuple[int, ...]:
        """Indices of the ops that read the output of op `op_index`."""
        name = self.ops[op_index].name
        return tuple(i for i, op in enumerate(self.ops) if op.source == name)

    @property
    def num_flops(self) -> int:
        """Of all ops."""
        return sum(op.num_flops for op in self.ops)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weight matrices."""
        return sum(op.n * op.k for op in self.ops) * self.dtype.size_bytes

    @property
    def compulsory_bytes(self) -> int:
        """Fewest bytes through DRAM with cold caches: each input and weight read once, each final output written
        once; intermediates stay in the cache."""
        size = self.dtype.size_bytes
        inputs = {op.source: op.m * op.k for i, op in enumerate(self.ops) if self.producer_of(i) is None}
        outputs = sum(op.m * op.n for i, op in enumerate(self.ops) if not self.consumers_of(i))
        biases = sum(op.n for op in self.ops if op.bias)
        return (sum(inputs.values()) + outputs + biases) * size + self.weight_bytes

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a size, a name or the topological order is wrong.
        """
        ops = tuple(GemmOp(**{**op, "activation": Activation(op["activation"])}) for op in data["ops"])
        return cls(kind=WorkloadKind(data["kind"]), ops=ops, dtype=Dtype(data["dtype"]))

    @property
    def digest(self) -> str:
        """16 hex digits that name this workload."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self) -> str:
        """One line in words, e.g. ``ffn fp16 M=16 4096 -> 14336 -> 4096 relu``."""
        if self.kind is WorkloadKind.INDEPENDENT:
            shapes = " beside ".join(f"[{op.m}, {op.n}, {op.k}]" for op in self.ops)
            return f"{self.kind} {self.dtype} {shapes}"
        dims = " -> ".join(str(d) for d in (self.ops[0].k, *(op.n for op in self.ops)))
        extras = [str(op.activation) for op in self.ops if op.activation is not Activation.IDENTITY]
        extras += ["bias"] if any(op.bias for op in self.ops) else []
        return " ".join([str(self.kind), str(self.dtype), f"M={self.ops[0].m}", dims, *extras])


def ffn_pair(
    *,
    m: int,
    d_in: int,
    d_hidden: int,
    d_out: int,
    dtype: Dtype = Dtype.FP16,
    activation: Activation = Activation.IDENTITY,
    bias: bool = False,
) -> Workload:
    """Y[m, d_out] = activation(X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2."""
    up = GemmOp(name="up", m=m, n=d_hidden, k=d_in, source="x", activation=activation, bias=bias)
    down = GemmOp(name="down", m=m, n=d_out, k=d_hidden, source="up", bias=bias)
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
