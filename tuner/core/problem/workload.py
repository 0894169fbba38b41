"""What is asked: a DAG of tiled ops over named tensors, of which a dependent pair of GEMMs is the smallest case."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from tuner.core.problem.dataflow import Flow, Read, check_dataflow
from tuner.errors import InvalidInput

#: Element indices are int32 on the device, which counts a tile to its end, beyond the matrix, and strides by a CTA.
MAX_ELEMENTS = 2**31 - 2**16

#: Of one element of a row scale, or of sums of squares, which are fp32 whatever the element type.
ROW_SCALE_BYTES = 4

#: Most ops of a workload.
MAX_OPS = 8

#: What keeps a row of zeros finite, where nothing else is said: that of Llama 3 and Qwen 2.5.
DEFAULT_EPS = 1e-5


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
    W[n, k] g[k]. The factor is s[i] = 1 / sqrt(mean(A_i^2) + eps). It comes as a row scale, or the op names the tensor
    of which it is the norm.

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
    #: Whether a tensor [m, n] is added after the activation, before rounding.
    residual: bool = False
    #: Whether row i of the product is multiplied by element i of an fp32 input ``<op>.row_scale`` [m].
    row_scale: bool = False
    #: The tensor that is added as the residual: an earlier op's name, or any other name for an input of the workload;
    #: empty for an input ``<op>.residual`` of its own.
    residual_source: str = ""
    #: The tensor [m, k] whose RMSNorm scales the rows: an earlier op's name, or any other name for an input, of which
    #: ``<input>.squares`` [m] is given, the fp32 sums of its rows' squares; empty for no norm.
    norm: str = ""
    #: With a norm: what is added to the mean of the squares, >= 0.
    eps: float = DEFAULT_EPS
    #: Whether the output leaves the chain, though an op of it reads it.
    is_output: bool = False

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
        self._check_options()

    def _check_options(self) -> None:
        """Options that need each other, or are in each other's way."""
        rules = (
            (
                bool(self.residual_source) and not self.residual,
                "residual_source",
                f"names {self.residual_source}, and no residual is added",
                "set residual, or name no source",
            ),
            (
                bool(self.norm) and self.row_scale,
                "norm",
                f"the norm of {self.norm} and a row scale both scale the rows",
                "give the norm or the row scale",
            ),
            (not self.norm and self.eps != DEFAULT_EPS, "eps", "belongs to a norm, and there is none", "leave it out"),
            (not 0 <= self.eps < 1, "eps", f"must be at least 0 and below 1, got {self.eps}", "give such as 1e-5"),
        )
        for is_broken, field, problem, remedy in rules:
            if is_broken:
                raise InvalidInput(f"{self.name}.{field}", problem, remedy)

    @property
    def reads(self) -> tuple[Read, ...]:
        """Each tensor that it names: A, and what its epilogue reads."""
        named = (
            Read("source", self.source, (self.m, self.k)),
            Read("residual_source", self.residual_source, (self.m, self.n)),
            Read("norm", self.norm, (self.m, self.k)),
        )
        return tuple(read for read in named if read.tensor)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of those."""
        return tuple(read.tensor for read in self.reads)

    @property
    def scales_rows(self) -> bool:
        """Whether each row of the product has a factor: a given one, or a norm's."""
        return self.row_scale or bool(self.norm)

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
        """Bytes of bias, residual and row scale, wherever they come from."""
        in_dtype = self.bias * self.weight_rows + self.residual * self.m * self.n
        return in_dtype * dtype.size_bytes + self.scales_rows * self.m * ROW_SCALE_BYTES


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
        if len(self.ops) > MAX_OPS:
            problem = f"{len(self.ops)} ops, and a kernel has room for {MAX_OPS}"
            raise InvalidInput("ops", problem, f"give at most {MAX_OPS}: cut the chain, and tune each run by itself")
        self._check_names()
        check_dataflow([Flow(op.name, (op.m, op.n), op.reads) for op in self.ops])

    def _check_names(self) -> None:
        """A tensor has one name, and a name one tensor: an op's output, an input, or an operand of one op."""
        names = [op.name for op in self.ops]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise InvalidInput("ops", f"the name {double!r} is used twice", "give each op its own name")
        operands = {f"{op.name}.{operand}": op.name for op in self.ops for operand in _OPERANDS}
        operands |= {f"{op.norm}.squares": op.norm for op in self.ops if op.norm}
        for name in (*names, *(tensor for op in self.ops for tensor in op.tensors)):
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

    def writes_squares(self, op_index: int) -> bool:
        """Whether op `op_index` writes the sums of squares of its rows, since a norm needs them."""
        return any(op.norm == self.ops[op_index].name for op in self.ops)

    def is_read(self, op_index: int) -> bool:
        """Whether an op of the workload reads the output of op `op_index`, as A or in its epilogue."""
        return any(self.ops[op_index].name in op.tensors for op in self.ops)

    def leaves(self, op_index: int) -> bool:
        """Whether the caller reads the output of op `op_index`."""
        return self.ops[op_index].is_output or not self.is_read(op_index)

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
        outputs = sum(op.m * op.n for i, op in enumerate(self.ops) if self.leaves(i))
        return self.compulsory_read_bytes + outputs * self.dtype.size_bytes

    @property
    def compulsory_read_bytes(self) -> int:
        """The part of `compulsory_bytes` that is read."""
        reads = (read for op in self.ops for read in op.reads if read.field != "norm")
        given = {read.tensor: read.shape[0] * read.shape[1] for read in reads}
        inputs = sum(size for tensor, size in given.items() if self.op_index(tensor) is None) * self.dtype.size_bytes
        return inputs + sum(map(self.own_epilogue_bytes, range(len(self.ops)))) + self.weight_bytes

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
        data = asdict(self)
        for op in data["ops"]:
            drop_defaults_of_chains(op)
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

    def describe(self, *, with_rows: bool = True) -> str:
        """One line in words, e.g. ``ffn fp16 M=16 4096 -> 14336 -> 4096 relu``; on demand for any number of rows."""
        if self.kind is WorkloadKind.INDEPENDENT:
            shapes = " beside ".join(f"[{op.m}, {op.n}, {op.k}]" for op in self.ops)
            return f"{self.kind} {self.dtype} {shapes}"
        dims = " -> ".join(str(d) for d in (self.ops[0].k, *(op.n for op in self.ops)))
        extras = [str(op.activation) for op in self.ops if op.activation is not Activation.IDENTITY]
        shown = ("bias", "gated", "residual", "row_scale", "norm")
        extras += [name for name in shown if any(getattr(op, name) for op in self.ops)]
        rows = [f"M={self.ops[0].m}"] if with_rows else []
        return " ".join([str(self.kind), str(self.dtype), *rows, dims, *extras])


def drop_defaults_of_chains(op: dict[str, Any]) -> None:
    """Takes from an op's JSON what chains alone ask for, where it has its default."""
    if not op["norm"]:
        del op["eps"]
    for name in ("residual_source", "norm", "is_output"):
        if not op[name]:
            del op[name]


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
