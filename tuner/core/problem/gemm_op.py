"""A product of matrices as an op of a workload, with what its epilogue does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self

from tuner.core.problem.activation import Activation
from tuner.core.problem.dataflow import Read
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.kv_cache import MOST_ROWS
from tuner.core.problem.op import TILE, Op, OpWords, Tensor, TileOp, given, output, weight
from tuner.core.problem.rotary import Rotary
from tuner.errors import InvalidInput

#: Element indices are int32 on the device, which counts a tile to its end, beyond the matrix, and strides by a CTA.
MAX_ELEMENTS = 2**31 - 2**16

#: Of one element of a row scale, or of sums of squares, which are fp32 whatever the element type.
ROW_SCALE_BYTES = 4

#: What keeps a row of zeros finite, where nothing else is said: that of Llama 3 and Qwen 2.5.
DEFAULT_EPS = 1e-5

#: Options of an op that are in the JSON form only where they are set.
_LATER_OP = ("gated", "residual", "row_scale")


@dataclass(frozen=True, kw_only=True)
class GemmOp(TileOp):
    """C[m, n] = activation(s[m] A[m, k] W[n, k]^T + bias[n]) + R[m, n], nn.Linear layout: row-major, k contiguous.

    Scale s, bias and residual R are there where the op says so. A gated op has the gate's rows of W and bias above the
    up projection's: W[2n, k] and bias[2n]. Then C = activation(gate) * up + R, where each of gate and up is s A W^T +
    bias on its half. With SiLU that is SwiGLU, with GELU GeGLU.

    RMSNorm of A's rows commutes with the product but for one factor per row: fold its weight g[k] into W beforehand,
    W[n, k] g[k]. The factor is s[i] = 1 / sqrt(mean(A_i^2) + eps). It comes as a row scale, or the op names the tensor
    of which it is the norm.

    An op with a `rotary` makes queries, keys and values of new tokens. It has as many columns as a row has pairs of
    elements: W has the first halves of all heads above the second halves, W[2n, k], and so has the bias. C has the
    queries alone, [m, heads * head_dim]; keys and values go to a cache.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020; Zhang, Sennrich, "Root Mean Square Layer Normalization",
    NeurIPS 2019.
    """

    KIND: ClassVar[str] = "gemm"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n", "k")
    SERVES_FEWER_ROWS: ClassVar[bool] = True

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of A and C, >= 1.
    m: int
    #: Columns of C, rows of W (half of them where gated), >= 1; with a `rotary` its pairs.
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
    #: Heads that are turned, and the cache that new keys and values are written to.
    rotary: Rotary | None = None

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
        for is_broken, field, problem, remedy in (*rules, *self._rotary_rules()):
            if is_broken:
                raise InvalidInput(f"{self.name}.{field}", problem, remedy)

    def _rotary_rules(self) -> tuple[tuple[bool, str, str, str], ...]:
        """What an op that writes to a cache may be."""
        if self.rotary is None:
            return ()
        rotary, own = self.rotary, "an op with a rotary embedding has a bias and a norm at most"
        options = {
            "activation": self.activation is not Activation.IDENTITY,
            "gated": self.gated,
            "residual": self.residual,
            "row_scale": self.row_scale,
        }
        rows = rotary.num_cache_rows(self.m)
        return (
            *((is_set, name, f"{self.name} is turned, and {own}", "leave it out") for name, is_set in options.items()),
            (
                self.n != rotary.num_pairs,
                "n",
                f"{rotary.heads} heads, and {rotary.kv_heads} of keys and of values, of {rotary.head_dim} elements are "
                f"{2 * rotary.num_pairs} columns, and there are {2 * self.n}",
                f"give {2 * rotary.num_pairs}",
            ),
            (
                self.m % rotary.new_tokens != 0,
                "rotary.new_tokens",
                f"{self.m} rows are not {rotary.new_tokens} new tokens of each sequence",
                f"give a multiple of {rotary.new_tokens} rows",
            ),
            (
                rows > MOST_ROWS,
                "rotary.max_length",
                f"the cache has {rows} rows of a head, and a kernel counts {MOST_ROWS} at most",
                "give a shorter one, or fewer sequences",
            ),
        )

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
    def operands(self) -> tuple[str, ...]:
        """The names of tensors of its own, and of what comes with a norm; weights are ``w`` in an artifact."""
        own = tuple(f"{self.name}.{name}" for name in ("weight", "w", "bias", "residual", "row_scale"))
        own += tuple(f"{self.name}.{name}" for name in self.rotary.operands) if self.rotary else ()
        return (*own, f"{self.norm}.squares") if self.norm else own

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """A, weights and bias, what the epilogue reads, what goes to a cache, and C."""
        added = self.residual_source or f"{self.name}.residual"
        found = [
            (True, given(self.source, (self.m, self.k), dtype)),
            (True, weight(f"{self.name}.weight", (self.weight_rows, self.k), dtype)),
            (self.bias, weight(f"{self.name}.bias", (self.weight_rows,), dtype)),
            (self.residual, given(added, (self.m, self.n), dtype)),
            (self.row_scale, given(f"{self.name}.row_scale", (self.m,), "fp32")),
            (bool(self.norm), given(self.norm, (self.m, self.k), dtype)),
            (bool(self.norm), given(f"{self.norm}.squares", (self.m,), "fp32")),
        ]
        beside = self.rotary.tensors(self.name, self.m, dtype) if self.rotary else ()
        read = dict.fromkeys(tensor for is_there, tensor in found if is_there)
        return (*read, *beside, output(self.name, (self.m, self.c_columns), dtype))

    def weight_bytes(self, dtype: Dtype) -> int:
        """Those of W; a bias is among `own_bytes`."""
        return self.weight_rows * self.k * dtype.size_bytes

    def own_bytes(self, dtype: Dtype, written: Collection[str]) -> int:
        """Bias, a residual of its own, and factors, or sums of squares of an input's rows."""
        in_dtype = self.bias * self.weight_rows + (self.residual and not self.residual_source) * self.m * self.n
        vectors = self.row_scale or (bool(self.norm) and self.norm not in written)
        return in_dtype * dtype.size_bytes + vectors * self.m * ROW_SCALE_BYTES

    @property
    def num_tiles(self) -> int:
        """Of C; of what is turned, of pairs."""
        return -(-self.m // TILE) * -(-self.n // TILE)

    @property
    def scales_rows(self) -> bool:
        """Whether each row of the product has a factor: a given one, or a norm's."""
        return self.row_scale or bool(self.norm)

    @property
    def rows_per_column(self) -> int:
        """Rows of W behind one column of C: a gate's and an up projection's, or a pair's; else one."""
        return 2 if self.gated or self.rotary else 1

    @property
    def c_columns(self) -> int:
        """Elements of a row of C: of what is turned, the queries'."""
        return self.rotary.query_columns if self.rotary else self.n

    @property
    def result_columns(self) -> int:
        """Elements of a row of all that it makes: of what is turned, queries, keys and values."""
        return 2 * self.n if self.rotary else self.n

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

    @property
    def written_cache(self) -> Rotary | None:
        """Where keys and values of what is turned go."""
        return self.rotary

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:
        """That no other op writes to a cache, and that no product reads what is turned.

        Raises:
            InvalidInput: names the op, and what would be right.
        """
        if not self.rotary:
            return
        writers = [op.name for op in ops if op.written_cache]
        if len(writers) > 1:
            problem = f"{writers[0]} and {writers[1]} both write to a cache, and a kernel has one such op"
            raise InvalidInput("ops", problem, "cut the chain between them, and tune each run by itself")
        if reader := next((one.name for one in ops if isinstance(one, TileOp) and self.name in one.read_names), None):
            problem = f"{reader} reads {self.name}, whose keys and values go to a cache"
            remedy = "let an attention behind it read its queries, or leave rotary out"
            raise InvalidInput("ops", problem, remedy)

    def describe(self, *, with_rows: bool = True) -> str:
        """The columns that it makes."""
        return f"{self.result_columns}{f' {self.rotary.describe()}' if self.rotary else ''}"

    def words(self) -> OpWords:
        """Its row in a table of a chain's ops."""
        residual = (self.residual_source or f"{self.name}.residual") if self.residual else ""
        return OpWords(
            sizes=", ".join(
                [
                    f"{self.m} x {self.result_columns} x {self.k}",
                    *(name for name in ("gated", "rotary") if getattr(self, name)),
                ]
            ),
            reads=self.source,
            named={read.field: read.tensor for read in self.reads},
            norm=self.norm or ("a given factor a row" if self.row_scale else ""),
            adds=" and ".join(what for what in (residual, "a bias" if self.bias else "") if what),
            function="" if self.activation is Activation.IDENTITY else str(self.activation),
        )

    def column_of_tiles(self, column: int) -> int:
        """Of what is turned tiles have pairs."""
        return self.rotary.pair_of(column) if self.rotary else column

    @classmethod
    def extras(cls, ops: Sequence[Self]) -> list[str]:
        """Activations op by op, then what any of them has."""
        found = [str(op.activation) for op in ops if op.activation is not Activation.IDENTITY]
        shown = ("bias", "gated", "residual", "row_scale", "norm")
        found += [name for name in shown if any(getattr(op, name) for op in ops)]
        return found + [op.rotary.describe() for op in ops if op.rotary]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse. It says nothing of its kind, as ever."""
        data = self.to_job_json()
        for name in _LATER_OP:
            if not data[name]:
                del data[name]
        return data

    def to_job_json(self) -> dict[str, Any]:
        """The same with every option that pairs have, set or not."""
        data = {name: getattr(self, name) for name in _names(type(self))}
        _drop_defaults_of_chains(data)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], dtype: Dtype = Dtype.FP16) -> Self:
        """Inverse of `to_json`, whatever the element type.

        Raises:
            InvalidInput: a size is wrong, or options do not go together.
        """
        rotary = Rotary.from_json(data["rotary"]) if data.get("rotary") else None
        return cls(**{**data, "activation": Activation(data["activation"]), "rotary": rotary})


@cache
def _names(cls: type[GemmOp]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _drop_defaults_of_chains(op: dict[str, Any]) -> None:
    """Takes from an op's JSON what chains alone ask for, where it has its default."""
    if not op["norm"]:
        del op["eps"]
    for name in ("residual_source", "norm", "is_output", "rotary"):
        if not op[name]:
            del op[name]
    if rotary := op.get("rotary"):
        op["rotary"] = rotary.to_json()
