"""Rotary embedding of queries and keys, and the write of keys and values to the cache: `Rotary` says which heads."""

from __future__ import annotations

from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import Broken, Part, Product
from tuner.core.problem.kv_cache import MOST_ROWS
from tuner.core.problem.op import Tensor


class Turn(Part):
    """A column of the sums is a pair: W has the first halves of all heads above the second ones."""

    field: ClassVar[str] = "rotary"
    rows_per_column: ClassVar[int] = 2

    def is_in(self, op: Product) -> bool:
        return op.rotary is not None

    def broken(self, op: Product) -> list[Broken]:
        if op.rotary is None:
            return []
        rotary, own = op.rotary, "an op with a rotary embedding has a bias and a norm at most"
        options = {
            "activation": op.activation is not Activation.IDENTITY,
            "gated": op.gated,
            "residual": op.residual,
            "row_scale": op.row_scale,
        }
        found: list[Broken] = [
            (name, f"{op.name} is turned, and {own}", "leave it out") for name, is_set in options.items() if is_set
        ]
        if op.n != rotary.num_pairs:
            problem = (
                f"{rotary.heads} heads, and {rotary.kv_heads} of keys and of values, of {rotary.head_dim} elements are "
                f"{2 * rotary.num_pairs} columns, and there are {2 * op.n}"
            )
            found.append(("n", problem, f"give {2 * rotary.num_pairs}"))
        if op.m % rotary.new_tokens:
            problem = f"{op.m} rows are not {rotary.new_tokens} new tokens of each sequence"
            found.append(("rotary.new_tokens", problem, f"give a multiple of {rotary.new_tokens} rows"))
        elif (rows := rotary.num_cache_rows(op.m)) > MOST_ROWS:
            problem = f"the cache has {rows} rows of a head, and a kernel counts {MOST_ROWS} at most"
            found.append(("rotary.max_length", problem, "give a shorter one, or fewer sequences"))
        return found

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return op.rotary.tensors(op.name, op.m, dtype) if op.rotary else ()
