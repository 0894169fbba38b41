"""What is asked: a DAG of tiled ops over named tensors, of which a dependent pair of GEMMs is the smallest case."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from tuner.errors import InvalidInput

#: Element indices are int32 on the device, which counts a tile to its end, beyond the matrix, and strides by a CTA.
MAX_ELEMENTS = 2**31 - 2**16

#: Of one element of a row scale, which is fp32 whatever the element type.
ROW_SCALE_BYTES = 4


class Dtype(StrEnum):
    """Element type of every tensor; accumulation is always fp32."""

    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def size_bytes(self) -> int:
        """Bytes per element."""
        return _SIZES_BYTES[self]

    def elements(self, num_bytes: int) -> int:
        """How many elements so many bytes hold."""
        return num_bytes // self.size_bytes


#: Whatever else depends on the size of an element asks `Dtype`, so that a new type is a row here.
_SIZES_BYTES = {Dtype.FP16: 2, Dtype.BF16: 2}


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
    """C[m, n] = activation(s[m] A[m, k] W[n, k]^T + bias[n]) + R[m, n], nn.Linear layout: row-major, k contiguous.

    Scale s, bias and residual R are there where the op says so. A gated op has the gate's rows of W and bias above the
    up projection's: W[2n, k] and bias[2n]. Then C = activation(gate) * up + R, where each of gate and up is s A W^T +
    bias on its half. With SiLU that is SwiGLU, with GELU GeGLU.

    RMSNorm of A's rows commutes with the product but for one factor per row: fold its weight g[k] into W beforehand,
    W[n, k] g[k], and give s[i] = 1 / sqrt(mean(A_i^2) + eps).

    Source: Shazeer, "GLU Variants Improve Transformer", 2020; Zhang, Sennrich, "Root Mean Square Layer Normalization",
    NeurIPS 2019.
    """

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of A and C, >= 1.
    m: int
    #: Columns of C, rows of W (half of them where gated), >= 1.
    n: int
    #: Columns of A and W, >= 1.
    k: int
    #: The tensor read as A: an earlier op's name, or any other name for an input of the workload.
    source: str = "x"
    #: Applied in the epilogue.
    activation: Activation = Activation.IDENTITY
    #: Whether a bias vector [n] is added before the activation, [2n] where gated.
    bias: bool = False
    #: Whether W holds a gate above an up projection, and C is the activated gate times the other.
    gated: bool = False
    #: Whether an input tensor ``<op>.residual`` [m, n] is added after the activation, before rounding.
    residual: bool = False
    #: Whether row i of the product is multiplied by element i of an fp32 input ``<op>.row_scale`` [m].
    row_scale: bool = False

    def __post_init__(self) -> None:
        for field in ("m", "n", "k"):
            value = getattr(self, field)
            if value < 1:
                raise InvalidInput(f"{self.name}.{field}", f"must be at least 1, got {value}", "give a positive size")
        for what, rows, columns in (("A", self.m, self.k), ("W", self.weight_rows, self.k), ("C", self.m, self.n)):
            if rows * columns > MAX_ELEMENTS:
                raise InvalidInput(
                    f"{self.name}.{what}",
                    f"{rows} x {columns} elements overflow a 32-bit index",
                    f"keep every matrix at or under {MAX_ELEMENTS} elements",
                )

    @property
    def rows_per_column(self) -> int:
        """Rows of W behind one column of C: a gate's and an up projection's, or one."""
        return 2 if self.gated else 1

    @property
    def weight_rows(self) -> int:
        """Rows of W, and elements of the bias."""
        return self.n * self.rows_per_column

    @property
    def num_flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.weight_rows * self.k

    def epilogue_bytes(self, dtype: Dtype) -> int:
        """Bytes of bias, residual and row scale."""
        in_dtype = self.bias * self.weight_rows + self.residual * self.m * self.n
        return in_dtype * dtype.size_bytes + self.row_scale * self.m * ROW_SCALE_BYTES


#: Names of an op's own operands, behind its name and a dot; weights are ``w`` in an artifact.
_OPERANDS = ("weight", "w", "bias", "residual", "row_scale")

#: Options of an op that are in the JSON form only where they are set.
_LATER_OP = ("gated", "residual", "row_scale")


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
        self._check_names()
        seen: dict[str, GemmOp] = {}
        inputs: dict[str, GemmOp] = {}
        for op in self.ops:
            if op.source == op.name or (op.source not in seen and self.op_index(op.source) is not None):
                what = "its own output" if op.source == op.name else "which a later op writes"
                remedy = "list the ops in topological order: each after the one that it reads"
                raise InvalidInput("ops", f"{op.name} reads {op.source}, {what}", remedy)
            producer = seen.get(op.source)
            if producer is not None and (producer.m, producer.n) != (op.m, op.k):
                raise InvalidInput(
                    f"{op.name}.k",
                    f"reads {op.source} as [{op.m}, {op.k}], but it is [{producer.m}, {producer.n}]",
                    "make the consumer's m and k the producer's m and n",
                )
            first = inputs.setdefault(op.source, op)
            if producer is None and (first.m, first.k) != (op.m, op.k):
                shapes = f"[{op.m}, {op.k}], but {first.name} reads it as [{first.m}, {first.k}]"
                raise InvalidInput(f"{op.name}.k", f"reads {op.source} as {shapes}", "give each input its own name")
            seen[op.name] = op

    def _check_names(self) -> None:
        """A tensor has one name, and a name one tensor: an op's output, an input, or an operand of one op."""
        names = [op.name for op in self.ops]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise InvalidInput("ops", f"the name {double!r} is used twice", "give each op its own name")
        operands = {f"{op.name}.{operand}": op.name for op in self.ops for operand in _OPERANDS}
        for name in (*names, *(op.source for op in self.ops)):
            if name in operands:
                problem = f"{name} is the name of an operand of {operands[name]}"
                raise InvalidInput("ops", problem, "give the op, or the input, another name")

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
        return sum(op.weight_rows * op.k for op in self.ops) * self.dtype.size_bytes

    @property
    def compulsory_bytes(self) -> int:
        """Fewest bytes through DRAM with cold caches: each input and weight read once, each final output written
        once; intermediates stay in the cache."""
        outputs = sum(op.m * op.n for i, op in enumerate(self.ops) if not self.consumers_of(i))
        return self.compulsory_read_bytes + outputs * self.dtype.size_bytes

    @property
    def compulsory_read_bytes(self) -> int:
        """The part of `compulsory_bytes` that is read."""
        inputs = {op.source: op.m * op.k for i, op in enumerate(self.ops) if self.producer_of(i) is None}
        epilogues = sum(op.epilogue_bytes(self.dtype) for op in self.ops)
        return sum(inputs.values()) * self.dtype.size_bytes + epilogues + self.weight_bytes

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse.

        What came later is left out while it has its default, so that digests outlive new options.
        """
        data = asdict(self)
        for op in data["ops"]:
            for name in _LATER_OP:
                if not op[name]:
                    del op[name]
        return data

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
        extras += [name for name in ("bias", *_LATER_OP) if any(getattr(op, name) for op in self.ops)]
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
