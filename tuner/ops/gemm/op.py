"""A product of matrices as an op of a workload, with what its epilogue does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar, Self

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue import PARTS, AddedPart, Part, parts_of
from tuner.core.problem.epilogue.added import part_versions, parts_from_json, unknown_part
from tuner.core.problem.epilogue.norm import DEFAULT_EPS
from tuner.core.problem.epilogue.residual import residual_dtype
from tuner.core.problem.op_kinds import OpKind
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import TILE, Op, OpWords, Role, Tensor, given, output, weight
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.tile_op import MAX_ELEMENTS, TileOp
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.weights.row import POWER_EXCESS
from tuner.errors import InvalidInput

#: Options of an op that appear in the JSON form only if they are set.
_LATER_OP = ("gated", "residual", "row_scale")


@dataclass(frozen=True, kw_only=True)
class GemmOp(TileOp):
    """C[m, n] = activation(s[m] A[m, k] W[n, k]^T + bias[n]) + R[m, n], nn.Linear layout: row-major, k contiguous.

    Scale s, bias and residual R exist only if the op has them. A gated op has the gate's rows of W and bias above the
    up projection's: W[2n, k] and bias[2n]. Then C = activation(gate) * up + R, where each of gate and up is s A W^T +
    bias on its half. With SiLU that is SwiGLU, with GELU GeGLU.

    RMSNorm of A's rows commutes with the product but for one factor per row: fold its weight g[k] into W in advance,
    W[n, k] g[k]. The factor is s[i] = 1 / sqrt(mean(A_i^2) + eps). It is given as a row scale, or the op names the
    tensor whose norm it is.

    An op with a `rotary` makes queries, keys and values of new tokens. It has one column per pair of elements of a row:
    W has the first halves of all heads above the second halves, W[2n, k], and so has the bias. C has only the queries,
    [m, heads * head_dim]; keys and values go to a cache.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020; Zhang, Sennrich, "Root Mean Square Layer Normalization",
    NeurIPS 2019.
    """

    KIND: ClassVar[str] = "gemm"
    FREE: ClassVar[tuple[str, ...]] = ("m", "n", "k")
    SERVES_FEWER_ROWS: ClassVar[bool] = True
    IS_PRODUCT: ClassVar[bool] = True

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Rows of A and C, >= 1.
    m: int
    #: Columns of C, rows of W (half of them if gated), >= 1; with a `rotary`, pairs.
    n: int
    #: Columns of A and W, >= 1.
    k: int
    #: The tensor read as A: an earlier op's name, or any other name for an input of the workload.
    source: str = "x"
    #: Applied in the epilogue.
    activation: Activation = Activation.IDENTITY
    #: Whether a bias vector [n] is added before the activation, [2n] if gated.
    bias: bool = False
    #: Whether W holds a gate above an up projection, and C is the activated gate times the up projection.
    gated: bool = False
    #: Whether a tensor [m, n] is added after the activation, before rounding.
    residual: bool = False
    #: Whether row i of the product is multiplied by element i of an fp32 input ``<op>.row_scale`` [m].
    row_scale: bool = False
    #: The tensor that is added as the residual: an earlier op's name, or any other name for an input of the workload;
    #: empty for a separate input ``<op>.residual``.
    residual_source: str = ""
    #: The tensor [m, k] whose RMSNorm scales the rows: an earlier op's name, or any other name for an input, for which
    #: ``<input>.squares`` [m] is given, the fp32 sums of its rows' squares; empty if there is no norm.
    norm: str = ""
    #: With a norm: what is added to the mean of the squares, >= 0.
    eps: float = DEFAULT_EPS
    #: Whether the caller reads the output, although an op of the chain reads it too.
    is_output: bool = False
    #: Heads that are rotated, and the cache that new keys and values are written to.
    rotary: Rotary | None = None
    #: Parts from packages; within each stage they are applied in this order.
    epilogue: tuple[AddedPart, ...] = ()
    #: The dtype of C in memory; None for the workload's element type.
    out_dtype: Dtype | None = None
    #: Storage format of W in fewer bits; None for elements.
    weights: WeightFormat | None = None

    def __post_init__(self) -> None:
        for field in ("m", "n", "k"):
            value = getattr(self, field)
            if value < 1:
                raise InvalidInput(f"{self.name}.{field}", f"must be at least 1, got {value}", "use a positive size")
        for what, rows, columns in (("A", self.m, self.k), ("W", self.weight_rows, self.k), ("C", self.m, self.n)):
            if rows * columns > MAX_ELEMENTS:
                raise InvalidInput(
                    f"{self.name}.{what}",
                    f"{rows} x {columns} elements overflow a 32-bit index",
                    f"keep every matrix at or under {MAX_ELEMENTS} elements",
                )
        self._check_options()

    def _check_options(self) -> None:
        """Checks options that require or exclude each other."""
        if self.weights and self.k % (unit := self.weights.row.unit):
            problem = f"is {self.k}, but {self.weights} packs {unit} weights of a row together"
            raise InvalidInput(f"{self.name}.k", problem, f"use a multiple of {unit}")
        for part in (*PARTS, *self.epilogue):
            for field, problem, remedy in part.broken(self):
                raise InvalidInput(f"{self.name}.{field}", problem, remedy)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its epilogue, in order."""
        return parts_of(self)

    @property
    def reads(self) -> tuple[Read, ...]:
        """Names of the tensors that the op reads: A, and the inputs of its epilogue."""
        named = (read for part in reversed(self.parts) for read in part.reads(self))
        remedy = "make the consumer's m and k the producer's m and n"
        return (Read("source", self.source, (self.m, self.k), blame="k", remedy=remedy), *named)

    def others(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """The tensors that parts of its epilogue write besides C."""
        of_parts = (tensor for part in self.epilogue for tensor in part.tensors(self, dtype))
        return tuple(tensor for tensor in of_parts if tensor.role is Role.OUTPUT)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors that only this op has, and of a norm's tensors; weights are ``w`` in an artifact."""
        of_parts = (name for part in (*PARTS, *self.epilogue) for name in part.operands(self))
        return (f"{self.name}.weight", f"{self.name}.w", *of_parts)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """A, weights, what the parts of the epilogue read or change, and C."""
        read = [given(self.source, (self.m, self.k), dtype)]
        read += [self._weight(dtype)]
        read += [tensor for part in self.parts for tensor in part.tensors(self, dtype)]
        return (*dict.fromkeys(read), output(self.name, (self.m, self.c_columns), self.stored_in(dtype)))

    def _weight(self, dtype: Dtype) -> Tensor:
        return weight(f"{self.name}.weight", *self.stored_weights(dtype))

    def weight_bytes(self, dtype: Dtype) -> int:
        """Bytes of W; a bias is part of `own_bytes`."""
        return self._weight(dtype).num_bytes

    def own_bytes(self, dtype: Dtype, written: Collection[str]) -> int:
        """Bytes of the bias, of a residual that no op computes, and of factors or sums of squares of input rows."""
        return sum(part.own_bytes(self, dtype, written) for part in self.parts)

    @property
    def num_tiles(self) -> int:
        """Number of tiles of C; for rotated heads, tiles of pairs."""
        return -(-self.m // TILE) * -(-self.n // TILE)

    @cached_property
    def scales_rows(self) -> bool:
        """Whether each row of the product has a factor: a given one, or a norm's."""
        return any(part.scales_rows for part in self.parts)

    @cached_property
    def halves(self) -> str:
        """A description of the rows of W for one column of C; empty if there is only one."""
        return next((part.halves for part in self.parts if part.halves), "")

    @cached_property
    def rows_per_column(self) -> int:
        """Rows of W per column of C: two for a gate and an up projection, or for a pair; else one."""
        return max((part.rows_per_column for part in self.parts), default=1)

    @property
    def c_columns(self) -> int:
        """Elements per row of C; for rotated heads, those of the queries."""
        return self.rotary.query_columns if self.rotary else self.n

    @property
    def result_columns(self) -> int:
        """Elements per row of all results together; for rotated heads, those of queries, keys and values."""
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
        """Bytes of bias, residual and row scale, whatever their source."""
        return sum(part.num_bytes(self, dtype) for part in self.parts)

    @property
    def written_cache(self) -> Rotary | None:
        """The cache that rotated keys and values are written to."""
        return self.rotary

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:
        """Checks that the norm's tensor has the squares of its rows, that no other op writes to a cache, and that no
        product reads rotated heads.

        Raises:
            InvalidInput: the message names the op, and what is expected.
        """
        for broken in (one for part in self.parts for one in part.misplaced(self, ops, dtype)):
            raise InvalidInput(f"{self.name}.{broken[0]}", *broken[1:])
        readers = [(one.name, *read) for one in ops if isinstance(one, TileOp) for read in _reads_as(one, dtype)]
        for by, tensor, read_as in readers:
            if tensor == self.name and read_as is not self.stored_in(dtype):
                problem = f"{by} reads {self.name} as {read_as}, but it is stored in {self.stored_in(dtype)}"
                remedy = f"leave it out, or let {by} read {self.name}.operand_values, of an epilogue's part operand"
                raise InvalidInput(f"{self.name}.out_dtype", problem, remedy)
        normed = next((op for op in ops if op.name == self.norm), None)
        if normed is None and self.norm not in ("", self.source) and dtype.sums is not dtype:
            problem = f"{self.name} normalizes by the input {self.norm}, and reads {self.source}"
            raise InvalidInput(f"{self.name}.norm", problem, "normalize by what it reads, or by an op's output")
        if isinstance(normed, TileOp) and not normed.IS_PRODUCT:
            problem = (
                f"{self.name} normalizes by {normed.name}, a {normed.KIND}, which "
                "does not store the squares of its rows"
            )
            raise InvalidInput(f"{self.name}.norm", problem, "normalize by an input, or by a product's output")
        products = [one for one in ops if isinstance(one, TileOp) and one.IS_PRODUCT]
        if other := next((one for one in products if one.weights != self.weights), None):
            stored = f"{self.weights or dtype}, and those of {other.name} in {other.weights or dtype}"
            raise InvalidInput(f"{self.name}.weights", f"are stored in {stored}", "use one format for all products")
        if self.weights and (bits := self.weights.row.element_bits) != dtype.row.bits:
            problem = f"are stored in {self.weights}, which is converted to {bits} bits, but the dtype is {dtype}"
            fitting = (one for one in Dtype if one.row.bits == bits and one.row.tensor_product)
            raise InvalidInput(f"{self.name}.weights", problem, f"use {' or '.join(fitting)}, or leave weights out")
        if self.weights and self.weights.row.has_powers and dtype.row.smallest_step > 2.0**-POWER_EXCESS:
            problem = f"are stored in {self.weights}, whose factors {dtype} cannot represent"
            raise InvalidInput(f"{self.name}.weights", problem, f"use {Dtype.BF16}, or another format")
        if not self.rotary:
            return
        writers = [op.name for op in ops if op.written_cache]
        if len(writers) > 1:
            problem = f"{writers[0]} and {writers[1]} both write to a cache, but a kernel supports only one such op"
            raise InvalidInput("ops", problem, "cut the chain between them, and tune each run separately")
        if reader := next((one.name for one in ops if isinstance(one, TileOp) and self.name in one.read_names), None):
            problem = f"{reader} reads {self.name}, whose keys and values go to a cache"
            remedy = "let an op that reads that cache read its queries, or leave rotary out"
            raise InvalidInput("ops", problem, remedy)

    def describe(self, *, with_rows: bool = True) -> str:
        """The columns that the product computes."""
        return f"{self.result_columns}{f' {self.rotary.describe()}' if self.rotary else ''}"

    def words(self) -> OpWords:
        """The op's row in a table of a chain's ops."""
        found = [part.words(self) for part in self.parts]

        def of(column: str) -> list[str]:
            return [words[column] for words in found if column in words]

        return OpWords(
            sizes=", ".join([f"{self.m} x {self.result_columns} x {self.k}", *of("sizes")]),
            reads=self.source,
            named={read.field: read.tensor for read in self.reads},
            norm="".join(of("norm")),
            adds=" and ".join(reversed(of("adds"))),
            function=", ".join(of("function")),
        )

    def column_of_tiles(self, column: int) -> int:
        """The tile column of a column of C: tiles of rotated heads hold pairs."""
        return self.rotary.pair_of(column) if self.rotary else column

    @property
    def needs(self) -> tuple[str, ...]:
        """What the parts from packages need."""
        return tuple(part.needed for part in self.epilogue)

    @classmethod
    def unknown_in(cls, data: Mapping[str, Any]) -> str:
        """The first part from a package that is not known here; empty if there is none."""
        return unknown_part(data.get("epilogue"))

    @classmethod
    def extras(cls, ops: Sequence[Self]) -> list[str]:
        """The activation of each op, then the options that any of them has."""
        found = [str(op.activation) for op in ops if op.activation is not Activation.IDENTITY]
        shown = ("bias", "gated", "residual", "row_scale", "norm")
        found += [name for name in shown if any(getattr(op, name) for op in ops)]
        found += [op.rotary.describe() for op in ops if op.rotary]
        found += [f"weights {one}" for one in dict.fromkeys(op.weights for op in ops) if one]
        return found + [part.describe() for op in ops for part in op.epilogue]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse. It has no kind, for compatibility."""
        data = self.to_job_json()
        for name in _LATER_OP:
            if not data[name]:
                del data[name]
        return data

    def to_job_json(self) -> dict[str, Any]:
        """Same as `to_json`, with every option of a pair, set or not."""
        data = {name: getattr(self, name) for name in _names(type(self))}
        _drop_defaults_of_chains(data)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], dtype: Dtype = Dtype.FP16) -> Self:
        """Inverse of `to_json`, whatever the element type.

        Raises:
            InvalidInput: a size is wrong, or options contradict each other.
        """
        rotary = Rotary.from_json(data["rotary"]) if data.get("rotary") else None
        epilogue = parts_from_json(data.get("epilogue", ()))
        stored = Dtype(data["out_dtype"]) if data.get("out_dtype") else None
        weights = WeightFormat(data["weights"]) if data.get("weights") else None
        made = {"activation": Activation(data["activation"]), "rotary": rotary, "epilogue": epilogue}
        return cls(**{**data, **made, "out_dtype": stored, "weights": weights})


def _reads_as(op: TileOp, dtype: Dtype) -> Iterator[tuple[str, Dtype]]:
    """The tensors that an op reads as elements, and the type of these elements."""
    yield from ((name, dtype) for name in ([op.source] if op.IS_PRODUCT else op.read_names))
    if op.residual_source:
        yield op.residual_source, residual_dtype(op, dtype)


@cache
def _names(cls: type[GemmOp]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _drop_defaults_of_chains(op: dict[str, Any]) -> None:
    """Removes from an op's JSON the fields that only chains set, if they have their defaults."""
    if not op["norm"]:
        del op["eps"]
    for name in ("residual_source", "norm", "is_output", "rotary", "epilogue", "out_dtype", "weights"):
        if not op[name]:
            del op[name]
    if rotary := op.get("rotary"):
        op["rotary"] = rotary.to_json()
    if "epilogue" in op:
        op["epilogue"] = [part.to_json() for part in op["epilogue"]]


KIND = OpKind(op=GemmOp, version=1, is_unnamed=True, extras=part_versions)
