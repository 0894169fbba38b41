"""The shape of decode attention, alone or with a plain product after it: a call has seven operands for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import InvalidInput
from tuner.ops.attention.op import ATTENTION
from tuner.packs.base_shape import DTYPES, OPTIONS, Json, is_product
from tuner.packs.launched_shape import LaunchedShape


@dataclass(frozen=True, kw_only=True)
class AttentionShape(LaunchedShape):
    """Decode attention, and the projection of its rows, without sequences and context."""

    section = "attentions"
    #: Dtype, heads, heads of the cache, elements of a head, new tokens, page tokens, flags, window, columns of the
    #: projection; scale and soft cap as float32; first rung, number of rungs, and the text.
    RECORD = struct.Struct("<9I2f3I")
    #: The timed length of contexts is not part of the shape.
    SIZES = ("sequences", "max_length", "lengths", "timed_length")

    @staticmethod
    def is_op(op: Mapping[str, Any]) -> bool:
        """Whether an op of a manifest's workload is an attention."""
        return op.get("op") == ATTENTION

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: Query heads.
    heads: int
    #: Heads of the cache.
    kv_heads: int
    #: Elements of a head.
    head_dim: int
    #: New tokens of each sequence, included in its length.
    new_tokens: int
    #: Tokens per page of the cache; 0 if it is contiguous.
    page_tokens: int
    #: Whether a page's heads come before its tokens.
    heads_first: bool
    #: Tokens that a query sees; 0 if it sees all.
    window: int
    #: Scores become soft_cap * tanh(score / soft_cap); 0 for no cap.
    soft_cap: float
    #: Scale of the scores.
    scale: float
    #: Columns of the projection after it; 0 if there is none.
    d_out: int

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> AttentionShape:
        """The shape of a manifest's workload.

        Raises:
            InvalidInput: it is not one attention with at most one plain product after it.
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

    @staticmethod
    def sizes_of(op: Mapping[str, Any]) -> tuple[int, int]:
        """Sequences and longest context of an op."""
        return op["sequences"], op["max_length"]

    @property
    def columns(self) -> int:
        """Columns of the attention's rows."""
        return self.heads * self.head_dim

    def figures(self, columns: int) -> tuple[Any, ...]:
        """The numbers of its record, from the dtype to the soft cap; `columns` are those of the output."""
        sizes = (self.heads, self.kv_heads, self.head_dim, self.new_tokens, self.page_tokens)
        more = (int(self.heads_first), self.window, columns, self.scale, self.soft_cap)
        return (DTYPES[self.dtype], *sizes, *more)

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


def _attention_and_projection(workload: Mapping[str, Any]) -> tuple[Json, Json | None]:
    """The attention, and the product after it if there is one: a call has seven operands for the two.

    Raises:
        InvalidInput: there are other ops, or the product has an option.
    """
    ops = workload["ops"]
    attentions, products = [op for op in ops if op.get("op") == ATTENTION], [*filter(is_product, ops)]
    if len(attentions) != 1 or len(products) > 1 or (products and products[0]["source"] != attentions[0]["name"]):
        problem = f"is of {', '.join(op['name'] for op in workload['ops'])}"
        raise InvalidInput("workload", problem, "pass one attention with at most one product after it")
    product = products[0] if products else None
    odd = [name for name in OPTIONS if product and product.get(name)]
    if product and product["activation"] != "identity":
        odd.append(product["activation"])
    if odd:
        raise InvalidInput("workload", f"has {', '.join(odd)} after its attention", "use a plain product")
    return attentions[0], product


SHAPE = AttentionShape
