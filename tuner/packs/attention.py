"""What a pack holds of decode attention: per shape a table of sequences and contexts, with kernels or the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.attention_op import ATTENTION
from tuner.errors import InvalidInput

from .contents import Answer, Kernel

#: Of the product behind an attention, what a call has no operand for.
_OPTIONS = ("bias", "gated", "residual", "row_scale", "norm", "rotary")


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Decode attention, and the projection of its rows, without sequences and context."""

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
        op, product = _ops_of(workload)
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
class AttentionRung(Answer):
    """What computes an attention for some sequences and contexts up to a length."""

    sequences: int
    #: Tokens of the longest context, and of a contiguous cache's rows.
    max_length: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """What computes something by sequences, then by the longest context."""

    rungs: tuple[AttentionRung, ...]

    def at(self, sequences: int, length: int) -> AttentionRung | None:
        """What computes contexts up to `length`: of so many sequences the rung of the least context that is no less."""
        return next((one for one in self.rungs if one.sequences == sequences and one.max_length >= length), None)


@dataclass(frozen=True, kw_only=True)
class AttentionEntry(Table):
    """An attention's table."""

    shape: AttentionShape


def check_attentions(entries: tuple[AttentionEntry, ...]) -> None:
    """Whether a pack can hold these tables.

    Raises:
        InvalidInput: a shape is there twice, a table says two things, or a kernel is of another shape.
    """
    shapes = [entry.shape for entry in entries]
    if len(set(shapes)) < len(shapes):
        raise InvalidInput("attentions", "a shape is there twice", "give each shape one table")
    for entry in entries:
        check_table("attentions", str(entry.shape), entry.rungs)
        for rung in entry.rungs:
            if rung.kernel is not None and AttentionShape.of_workload(rung.kernel.manifest["workload"]) != entry.shape:
                where = f"{entry.shape}, {rung.sequences} x {rung.max_length}"
                raise _of_another(where, rung.kernel)


def check_table(field: str, shape: str, rungs: tuple[AttentionRung, ...]) -> None:
    """Whether a table says one thing of each number of sequences and context, by kernels of that size. `field` and
    `shape` are for the sentence.

    Raises:
        InvalidInput: it does not.
    """
    keys = [(rung.sequences, rung.max_length) for rung in rungs]
    if keys != sorted(set(keys)) or any(number < 1 for key in keys for number in key):
        raise InvalidInput(field, f"{shape}: sequences and contexts {keys} are in no order", "give each once, rising")
    for rung in rungs:
        if rung.kernel is not None:
            _check_kernel(f"{shape}, {rung.sequences} x {rung.max_length}", rung, rung.kernel)


def _check_kernel(where: str, rung: AttentionRung, kernel: Kernel) -> None:
    kernel.check_files(where)
    sizes = [
        (op["sequences"], op["max_length"]) for op in kernel.manifest["workload"]["ops"] if op.get("op") == ATTENTION
    ]
    if sizes != [(rung.sequences, rung.max_length)]:
        raise _of_another(where, kernel)
    if any(launch["stream"] for launch in kernel.manifest["launches"]):
        problem = f"{where}: {kernel.digest[:12]} runs on two streams"
        raise InvalidInput("kernel", problem, "give one of another kind, e.g. two_launches_pdl")


def _of_another(where: str, kernel: Kernel) -> InvalidInput:
    return InvalidInput("kernel", f"{where}: {kernel.digest[:12]} computes another attention", "give its kernel")


def is_plain_call(workload: Mapping[str, Any]) -> bool:
    """Whether it is an attention, alone or with a plain product behind it: what a call has seven operands for."""
    try:
        _ops_of(workload)
    except InvalidInput:
        return False
    return True


def _ops_of(workload: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The attention, and the product behind it if there is one.

    Raises:
        InvalidInput: there are others, or the product has an option.
    """
    attentions = [op for op in workload["ops"] if op.get("op") == ATTENTION]
    products = [op for op in workload["ops"] if op.get("op") != ATTENTION]
    if len(attentions) != 1:
        raise InvalidInput("workload", f"has {len(attentions)} attentions", "give one")
    front = [product["name"] for product in products if product["name"] == attentions[0]["source"]]
    if front:
        problem = f"{front[0]} stands in front of {attentions[0]['name']}"
        raise InvalidInput("workload", problem, "give it among the layers, whose tensors have names")
    if len(products) > 1:
        problem = f"has {len(products)} products behind its attention"
        raise InvalidInput("workload", problem, "give one at most, or give it among the layers")
    product = products[0] if products else None
    odd = [name for name in _OPTIONS if product and product.get(name)]
    if product and product["activation"] != "identity":
        odd.append(product["activation"])
    if odd:
        problem = f"has {', '.join(odd)} behind its attention"
        raise InvalidInput("workload", problem, "give a plain product, or give it among the layers")
    return attentions[0], product
