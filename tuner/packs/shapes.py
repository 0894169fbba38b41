"""The key of a pack's table: a workload without its sizes. Each kind of shape has a section in `pack.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Self

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import op_from_json, op_kinds
from tuner.core.problem.ops.op import Op
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.packs.base_shape import OPTIONS, BaseShape, Json, is_product
from tuner.packs.launched_shape import LaunchedShape, launched_shape_of, launched_shapes

#: Their numbers in `pack.bin`.
ACTIVATIONS = {str(one): one.row.number for one in Activation}
#: For a product, and for the cache that it writes to, the fields that differ between the rungs of a ladder.
_SIZES = ("m", "sequences", "max_length", "lengths", "timed_length")
#: For the input or output of another package's op, since its tensors contain the number of rows.
UNKNOWN_COLUMNS = 1
#: Fields of a product that a chain allows, but for which an FFN has no operand.
_OF_CHAINS = ("norm", "rotary", "residual_source", "is_output", "epilogue", "out_dtype", "weights")


@dataclass(frozen=True, kw_only=True)
class Shape(BaseShape):
    """An FFN without its rows: Y = activation(s X W1^T + b1) W2^T + b2 + R; gated as in a request for such a pair."""

    section = "shapes"
    by_rows = True

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: The name of the first product's `Activation`.
    activation: str
    #: Columns of X.
    d_in: int
    #: Columns of the intermediate.
    d_hidden: int
    #: Columns of Y.
    d_out: int
    #: Whether W1 contains the gate's rows above the up projection's.
    gated: bool = False
    #: Whether both products have one.
    bias: bool = False
    #: Whether R is added to Y.
    residual: bool = False
    #: Whether the rows of X are scaled.
    row_scale: bool = False

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> Shape:
        """The shape of a manifest's workload.

        Raises:
            InvalidInput: it is not an FFN of two products.
        """
        ops = workload["ops"]
        if not all(map(is_product, ops)) or len(ops) != 2 or ops[1]["source"] != ops[0]["name"]:
            problem = f"has {len(ops)} ops or they are not a chain"
            raise InvalidInput("workload", problem, "pass the artifacts of an FFN's two products")
        first, second = ops
        odd = [name for name in ("gated", "row_scale") if second.get(name)]
        odd += ["residual"] if first.get("residual") else []
        odd += [name for name in _OF_CHAINS if first.get(name) or second.get(name)]
        if odd or second["activation"] != "identity" or bool(first["bias"]) != bool(second["bias"]):
            raise InvalidInput(
                "workload",
                f"has {', '.join(odd) or 'an activation or a bias'}, which an FFN in a pack cannot have there",
                "put activation, gate and row scale in the first product, the residual in the second, biases in both",
            )
        return cls(
            dtype=workload.get("dtype", "fp16"),
            activation=first["activation"],
            d_in=first["k"],
            d_hidden=first["n"],
            d_out=second["n"],
            gated=bool(first.get("gated")),
            bias=bool(first["bias"]),
            residual=bool(second.get("residual")),
            row_scale=bool(first.get("row_scale")),
        )

    def __str__(self) -> str:
        options = [name for name in ("gated", "bias", "residual", "row_scale") if getattr(self, name)]
        return " ".join([self.dtype, f"{self.d_in} -> {self.d_hidden} -> {self.d_out}", self.activation, *options])


@dataclass(frozen=True, kw_only=True)
class _OpsShape(BaseShape):
    """The ops of a chain, without rows, sequences and contexts. Its tensors have the names of the manifest."""

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: The ops, in order, as in a manifest's workload: one line of JSON with sorted keys.
    ops_json: str

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> Self:
        """The shape of a manifest's workload."""
        return cls(dtype=workload.get("dtype", "fp16"), ops_json=ops_without_sizes(workload))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(dtype=data["dtype"], ops_json=json.dumps(data["ops"], sort_keys=True))

    def to_json(self) -> Json:
        """A dict of plain JSON values."""
        return {"dtype": self.dtype, "ops": self.ops}

    @property
    def ops(self) -> list[Json]:
        """The ops in order; a new list at each call."""
        found: list[Json] = json.loads(self.ops_json)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the ops."""
        return tuple(op["name"] for op in self.ops)

    @cached_property
    def launched(self) -> LaunchedShape | None:
        """The only op that is not a product and has its own launch; None if there is none."""
        for op in self.ops:
            if shape := launched_shape_of(op):
                return shape.of_workload({"dtype": self.dtype, "ops": [op]})
        return None

    @property
    def num_in_front(self) -> int:
        """Number of products before that op; all of them if there is none."""
        are_products = [*map(is_product, self.ops), False]
        return are_products.index(False)

    @property
    def num_products(self) -> int:
        """Number of all products."""
        return sum(map(is_product, self.ops))

    @property
    def d_in(self) -> int:
        """Columns of the first op's input."""
        first = self.ops[0]
        if is_product(first):
            return int(first["k"])
        return UNKNOWN_COLUMNS if self.launched is None else self.launched.columns

    @property
    def d_out(self) -> int:
        """Columns of the last op's output; for a rotated product the queries'."""
        last = self.ops[-1]
        if not is_product(last):
            return UNKNOWN_COLUMNS if self.launched is None else self.launched.columns
        turned = last.get("rotary")
        return int(turned["heads"] * turned["head_dim"] if turned else last["n"])

    @property
    def name(self) -> str:
        """As text, unique within its section; two chains may have equal texts."""
        return f"{self} {self.ops_json}"

    def __str__(self) -> str:
        launched = f": {str(self.launched).partition(', ')[2]}" if self.launched else ""
        read = [str(self.d_in)] * (self.d_in != UNKNOWN_COLUMNS)
        return f"{self.dtype} {' -> '.join([*read, *map(_words, self.ops)])}{launched}"

    @property
    def counted(self) -> str:
        """What its ops compute together, if its rows are parts of that, e.g. ``images=4``; else empty."""
        fields = ((op.BATCH_FIELD, op.batch_size) for op in self._counting)
        return next((f"{field}={size}" for field, size in fields), "")

    @property
    def described(self) -> str:
        """Its text, with the sizes of ops that do not count rows, e.g. ``conv1 3x3 64 of 56x56``."""
        counting = {op.name: op.describe(with_rows=False) for op in self._counting}
        if not counting:
            return str(self)
        return f"{self.dtype} {' -> '.join(f'{name} {counting.get(name, str())}'.rstrip() for name in self.names)}"

    @property
    def _counting(self) -> list[Op]:
        """The ops whose callers count something else than rows."""
        dtype, kinds = Dtype(self.dtype), op_kinds()
        given = [one for one in self.ops if one.get("op") in kinds and kinds[str(one["op"])].op.BATCH_FIELD]
        return [op_from_json(one, dtype) for one in given]


class LayerShape(_OpsShape):
    """An op with its own launch, and products around it."""

    section = "layers"


class ChainShape(_OpsShape):
    """Products, and ops from other packages. Their kernels support only the number of rows that they were made for."""

    section = "chains"
    by_rows = True

    @property
    def has_fixed_rows(self) -> bool:
        """Whether an op is not a product."""
        return not all(map(is_product, self.ops))

    @property
    def num_in_front(self) -> int:
        """There is no op with products before it."""
        return self.num_products


AnyShape = Shape | LaunchedShape | LayerShape | ChainShape


@cache
def shape_kinds() -> dict[str, type[AnyShape]]:
    """All known kinds of shapes, by section."""
    kinds: tuple[type[AnyShape], ...] = (Shape, *launched_shapes(), LayerShape, ChainShape)
    return {kind.section: kind for kind in kinds}


def is_pair(workload: Mapping[str, Any]) -> bool:
    """Whether a manifest's workload has a `Shape`: the only ones that a pack runs on two streams."""
    return bool(workload.get("kind", "ffn") == "ffn")


def shape_of(workload: Mapping[str, Any]) -> AnyShape:
    """The key of a pack's table for a manifest's workload.

    Raises:
        InvalidInput: it cannot be put into a pack.
    """
    launched = [op["name"] for op in workload["ops"] if launched_shape_of(op)]
    others = [op["name"] for op in workload["ops"] if not is_product(op) and op["name"] not in launched]
    if len(launched) > 1 or (launched and others):
        launched += others
        raise InvalidInput("workload", f"has {' and '.join(launched)}", f"pass one of them; or {_ELSE}")
    if workload.get("kind") == "independent":
        raise InvalidInput("workload", "is two products, neither of which reads the other", _ELSE)
    if is_pair(workload):
        return Shape.of_workload(workload)
    if (shape := next(filter(None, map(launched_shape_of, workload["ops"])), None)) is None:
        return ChainShape.of_workload(workload)
    try:
        return shape.of_workload(workload)
    except InvalidInput:  # its ops have names in that case
        return LayerShape.of_workload(workload)


_ELSE = "use its artifact, which `load_artifact` runs"


def _words(op: Json) -> str:
    """An op's name, columns and options."""
    if not is_product(op):
        return str(op["name"])
    columns = 2 * op["n"] if op.get("rotary") else op["n"]
    activation = [] if op["activation"] == "identity" else [op["activation"]]
    fewer = [op["weights"]] if op.get("weights") else []
    return " ".join([op["name"], str(columns), *(name for name in OPTIONS if op.get(name)), *activation, *fewer])


def sizes_of(workload: Mapping[str, Any]) -> tuple[int, int]:
    """Rows, or for an op with a cache its sequences, and the longest context; 0 if there is none."""
    for op in workload["ops"]:
        if shape := launched_shape_of(op):
            return shape.sizes_of(op)
    first = workload["ops"][0]
    return first["m"] if "m" in first else Workload.from_json(dict(workload)).tile_ops[0].m, 0


def ops_without_sizes(workload: Mapping[str, Any]) -> str:
    """The part of a manifest's workload that all rungs of a ladder share: one line of JSON."""
    return json.dumps([_without_sizes(op) for op in workload["ops"]], sort_keys=True)


def _without_sizes(op: Mapping[str, Any]) -> Json:
    """The part of an op that all rungs of a ladder share."""
    launched = launched_shape_of(op)
    sizes = launched.SIZES if launched else ("m",)
    found = {name: value for name, value in op.items() if name not in sizes}
    if not is_product(op):
        return found
    if turned := op.get("rotary"):
        found["rotary"] = {name: value for name, value in turned.items() if name not in _SIZES}
    return found
