"""What a pack's table is asked by: a workload without its sizes. Each kind of shape has a section in `pack.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from tuner.core.problem.attention_op import ATTENTION
from tuner.errors import InvalidInput

Json = dict[str, Any]
#: In the order of their numbers in `pack.bin`.
DTYPES = ("fp16", "bf16")
ACTIVATIONS = ("identity", "relu", "gelu", "silu")
#: What differs from line to line of a ladder. How long the contexts were that were timed is no matter of the shape.
_SIZES = ("m", "sequences", "max_length", "lengths")
#: Of a product, for people; and what it may have that neither an FFN nor a call of an attention has an operand for.
_OPTIONS = ("norm", "row_scale", "bias", "gated", "rotary", "residual")
_OF_CHAINS = ("norm", "rotary", "residual_source", "is_output")


class _Shape:
    """What all kinds have."""

    #: Of `pack.json`, of `POST /packs` and of an order.
    section: ClassVar[str]
    #: Whether a ladder is asked by rows alone; else by sequences and the longest context.
    by_rows: ClassVar[bool] = False

    def to_json(self) -> Json:
        """A dict of plain JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(**data)

    @property
    def name(self) -> str:
        """In words, which tell it from all others of its section."""
        return str(self)


@dataclass(frozen=True, kw_only=True)
class Shape(_Shape):
    """An FFN without its rows: Y = activation(s X W1^T + b1) W2^T + b2 + R; gated as `ffn_pair` says."""

    section = "shapes"
    by_rows = True

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: Of the first product: ``identity``, ``relu``, ``gelu`` (tanh) or ``silu``.
    activation: str
    #: Columns of X.
    d_in: int
    #: Columns of the intermediate.
    d_hidden: int
    #: Columns of Y.
    d_out: int
    #: Whether W1 holds the gate's rows above the up projection's.
    gated: bool = False
    #: Whether both products have one.
    bias: bool = False
    #: Whether R is added to Y.
    residual: bool = False
    #: Whether the rows of X are scaled.
    row_scale: bool = False

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> Shape:
        """That of a manifest's workload.

        Raises:
            InvalidInput: it is no FFN of two products.
        """
        ops = workload["ops"]
        if _attentions_of(workload) or len(ops) != 2 or ops[1]["source"] != ops[0]["name"]:
            problem = f"has {len(ops)} ops or they are not a chain"
            raise InvalidInput("workload", problem, "give the artifacts of an FFN's two products")
        first, second = ops
        odd = [name for name in ("gated", "row_scale") if second.get(name)]
        odd += ["residual"] if first.get("residual") else []
        odd += [name for name in _OF_CHAINS if first.get(name) or second.get(name)]
        if odd or second["activation"] != "identity" or bool(first["bias"]) != bool(second["bias"]):
            raise InvalidInput(
                "workload",
                f"has {', '.join(odd) or 'an activation or a bias'} where an FFN of a pack has no place for it",
                "give activation, gate and row scale to the first product, the residual to the second, biases to both",
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
class AttentionShape(_Shape):
    """Decode attention, and the projection of its rows, without sequences and context."""

    section = "attentions"

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: Query heads.
    heads: int
    #: Heads of the cache.
    kv_heads: int
    #: Elements of a head.
    head_dim: int
    #: Of each sequence, included in its length.
    new_tokens: int
    #: Of a page of the cache; 0 where it is contiguous.
    page_tokens: int
    #: Whether a page's heads come before its tokens.
    heads_first: bool
    #: Tokens that a query sees; 0 for all.
    window: int
    #: Scores become soft_cap * tanh(score / soft_cap); 0 for no cap.
    soft_cap: float
    #: Of the scores.
    scale: float
    #: Columns of the projection behind it; 0 where there is none.
    d_out: int

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> AttentionShape:
        """That of a manifest's workload.

        Raises:
            InvalidInput: it is not one attention with at most one plain product behind it.
        """
        op, product = _attention_and_projection(workload)
        return cls(
            dtype=workload.get("dtype", "fp16"),
            heads=op["kv_heads"] * op["query_heads"],
            kv_heads=op["kv_heads"],
            head_dim=op["head_dim"],
            new_tokens=op["new_tokens"],
            page_tokens=op.get("page_tokens") or 0,
            heads_first=bool(op.get("heads_first", True)),
            window=op.get("window") or 0,
            soft_cap=op.get("soft_cap") or 0.0,
            scale=op.get("scale") or op["head_dim"] ** -0.5,
            d_out=product["n"] if product else 0,
        )

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim} over {self.kv_heads}"
        pages = f"pages of {self.page_tokens}{'' if self.heads_first else ', tokens first'}" if self.page_tokens else ""
        options = (
            pages,
            f"{self.new_tokens} new" if self.new_tokens > 1 else "",
            f"window {self.window}" if self.window else "",
            f"soft cap {self.soft_cap:g}" if self.soft_cap else "",
            "" if self.scale == self.head_dim**-0.5 else f"scale {self.scale:g}",
            f"projection to {self.d_out}" if self.d_out else "",
        )
        return ", ".join([f"{self.dtype} attention, {heads}", *filter(None, options)])


@dataclass(frozen=True, kw_only=True)
class _OpsShape(_Shape):
    """The ops of a chain, without rows, sequences and contexts. Its tensors have the names of the manifest."""

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: Of the ops, in order, as a manifest's workload has them: one line of JSON with sorted keys.
    ops_json: str

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> Self:
        """That of a manifest's workload."""
        ops = [_without_sizes(op) for op in workload["ops"]]
        return cls(dtype=workload.get("dtype", "fp16"), ops_json=json.dumps(ops, sort_keys=True))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(dtype=data["dtype"], ops_json=json.dumps(data["ops"], sort_keys=True))

    def to_json(self) -> Json:
        """A dict of plain JSON values."""
        return {"dtype": self.dtype, "ops": self.ops}

    @property
    def ops(self) -> list[Json]:
        """In order; new at each call."""
        found: list[Json] = json.loads(self.ops_json)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Of the ops."""
        return tuple(op["name"] for op in self.ops)

    @cached_property
    def attention(self) -> AttentionShape | None:
        """The attention in it, without the product behind it; None where there is none."""
        alone = [{**op, "source": "q"} for op in self.ops if op.get("op") == ATTENTION]
        return AttentionShape.of_workload({"dtype": self.dtype, "ops": alone}) if alone else None

    @property
    def num_in_front(self) -> int:
        """Products in front of the attention; all of them where there is none."""
        is_attention = [op.get("op") == ATTENTION for op in self.ops]
        return is_attention.index(True) if any(is_attention) else len(is_attention)

    @property
    def num_products(self) -> int:
        """In front of the attention and behind it."""
        return len(self.ops) - (self.attention is not None)

    @property
    def d_in(self) -> int:
        """Columns of what the first op reads."""
        first = self.ops[0]
        return int(self._attended_columns if first.get("op") == ATTENTION else first["k"])

    @property
    def d_out(self) -> int:
        """Columns of what the last op makes; of a product that is turned the queries'."""
        last = self.ops[-1]
        if last.get("op") == ATTENTION:
            return self._attended_columns
        turned = last.get("rotary")
        return int(turned["heads"] * turned["head_dim"] if turned else last["n"])

    @property
    def _attended_columns(self) -> int:
        return self.attention.heads * self.attention.head_dim if self.attention else 0

    @property
    def name(self) -> str:
        """In words, which tell it from all others of its section; two chains may read alike."""
        return f"{self} {self.ops_json}"

    def __str__(self) -> str:
        attention = f": {str(self.attention).partition(', ')[2]}" if self.attention else ""
        return f"{self.dtype} {self.d_in} -> {' -> '.join(map(_words, self.ops))}{attention}"


class LayerShape(_OpsShape):
    """One attention and products around it."""

    section = "layers"


class ChainShape(_OpsShape):
    """Products alone."""

    section = "chains"
    by_rows = True


AnyShape = Shape | AttentionShape | LayerShape | ChainShape
#: By section.
KINDS: dict[str, type[AnyShape]] = {kind.section: kind for kind in (Shape, AttentionShape, LayerShape, ChainShape)}


def shape_of(workload: Mapping[str, Any]) -> AnyShape:
    """What a pack's table is asked by for a manifest's workload.

    Raises:
        InvalidInput: no pack has a place for it.
    """
    if (num_attentions := len(_attentions_of(workload))) > 1:
        raise InvalidInput("workload", f"has {num_attentions} attentions", f"give one at most; {_ELSE}")
    kind = workload.get("kind", "ffn")
    if kind == "independent":
        raise InvalidInput("workload", "is two products of which neither reads the other", _ELSE)
    if kind == "ffn":
        return Shape.of_workload(workload)
    try:
        return AttentionShape.of_workload(workload)
    except InvalidInput:  # its ops have names then
        return (LayerShape if num_attentions else ChainShape).of_workload(workload)


_ELSE = "take its artifact, as `load_artifact` runs it"


def sizes_of(workload: Mapping[str, Any]) -> tuple[int, int]:
    """Rows, or where there is an attention its sequences, and the longest context; 0 where there is none."""
    for op in _attentions_of(workload):
        return op["sequences"], op["max_length"]
    return workload["ops"][0]["m"], 0


def _attentions_of(workload: Mapping[str, Any]) -> list[Json]:
    return [op for op in workload["ops"] if op.get("op") == ATTENTION]


def _attention_and_projection(workload: Mapping[str, Any]) -> tuple[Json, Json | None]:
    """The attention, and the product behind it if there is one: what a call has seven operands for.

    Raises:
        InvalidInput: there are others, or the product has an option.
    """
    attentions, products = _attentions_of(workload), [op for op in workload["ops"] if op.get("op") != ATTENTION]
    if len(attentions) != 1 or len(products) > 1 or (products and products[0]["source"] != attentions[0]["name"]):
        problem = f"is of {', '.join(op['name'] for op in workload['ops'])}"
        raise InvalidInput("workload", problem, "give one attention with one product behind it at most")
    product = products[0] if products else None
    odd = [name for name in _OPTIONS if product and product.get(name)]
    if product and product["activation"] != "identity":
        odd.append(product["activation"])
    if odd:
        raise InvalidInput("workload", f"has {', '.join(odd)} behind its attention", "give a plain product")
    return attentions[0], product


def _words(op: Json) -> str:
    """An op's name, columns and options."""
    if op.get("op") == ATTENTION:
        return str(op["name"])
    columns = 2 * op["n"] if op.get("rotary") else op["n"]
    activation = [] if op["activation"] == "identity" else [op["activation"]]
    return " ".join([op["name"], str(columns), *(name for name in _OPTIONS if op.get(name)), *activation])


def _without_sizes(op: Mapping[str, Any]) -> Json:
    """Of an op, what all lines of a ladder have."""
    found = {name: value for name, value in op.items() if name not in _SIZES}
    if turned := op.get("rotary"):
        found["rotary"] = {name: value for name, value in turned.items() if name not in _SIZES}
    return found
