"""Rotary embedding of queries and keys, and the write of keys and values to the cache: `Rotary` defines the heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.part import Argument, Broken, Part, Product, Stage
from tuner.core.problem.epilogue.sums import EPILOGUE_ERROR, Sums, Tensors
from tuner.core.problem.ops.kv_cache import CACHES, MOST_ROWS, OF_CACHE
from tuner.core.problem.ops.op import Tensor
from tuner.core.problem.rows.dtype import Array


class Turn(Part):
    """A column of the sums is a pair: in W, the first halves of all heads come before the second halves."""

    field: ClassVar[str] = "rotary"
    is_of_words: ClassVar[bool] = True
    stage: ClassVar[Stage] = Stage.OUTPUT
    rows_per_column: ClassVar[int] = 2
    halves: ClassVar[str] = "both halves of heads"
    meaning: ClassVar[str] = (
        "of an op with `rotary`: a row of the product is the queries, keys and values of a new token, head by head; "
        "n counts pairs, elements i and i + head_dim / 2 of a head. Weight and bias hold the first halves of all "
        "heads, in the order of the heads, then the second halves. Pairs of queries and keys are rotated by position "
        "* frequencies[i], in fp32. Queries are the output; keys and values go to the caches, at the token's "
        "position. A token before the start of its sequence or past max_length is not stored, nor is one whose page "
        "is not in the cache. Such lengths and pages are reported in the words `refused` of the launch's workspace"
    )
    changes_cache: ClassVar[bool] = True
    library_kernel: ClassVar[str] = "tuner_rotary"
    planted: ClassVar[tuple[str, str]] = ("old_x * turn.cosine - y", "old_x * turn.cosine + y")

    def is_in(self, op: Product) -> bool:
        return op.rotary is not None

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """Queries, keys and values head by head, from the halves of all heads. Keys and values of a token without a
        position are zero. A pair's error combines the errors of both sums, weighted by cosine and sine, and the errors
        of these."""
        assert op.rotary is not None
        xp, num_values, half = sums.xp, op.rotary.kv_heads, op.rotary.head_dim // 2
        angles, is_kept = self._angles(op, sums, tensors)
        cosines, sines = xp.cos(angles)[:, None], xp.sin(angles)[:, None]
        (x, y), (x_error, y_error) = ((of[:, : op.n], of[:, op.n :]) for of in (sums.values, sums.error))
        x, y, x_error, y_error = (of.reshape(op.m, -1, half) for of in (x, y, x_error, y_error))
        heads = xp.concatenate([x * cosines - y * sines, y * cosines + x * sines], axis=-1)
        of_turn = EPILOGUE_ERROR * (xp.abs(x) + xp.abs(y))
        cosines, sines = xp.abs(cosines), xp.abs(sines)
        of_x, of_y = (a * cosines + b * sines + of_turn for a, b in ((x_error, y_error), (y_error, x_error)))
        errors = xp.concatenate([of_x, of_y], axis=-1)
        heads[:, -num_values:] = xp.concatenate([x, y], axis=-1)[:, -num_values:]
        errors[:, -num_values:] = xp.concatenate([x_error, y_error], axis=-1)[:, -num_values:]
        heads[:, op.rotary.heads :] *= is_kept[:, None, None]
        sums.replace(heads.reshape(op.m, -1), errors.reshape(op.m, -1))

    def _angles(self, op: Product, sums: Sums, tensors: Tensors) -> tuple[Array, Array]:
        """[m, head_dim / 2] position * frequency, rounded once to fp32 as in every kernel; and [m] whether keys and
        values are stored."""
        assert op.rotary is not None
        lengths, frequencies = (tensors[f"{op.name}.{name}"].values for name in ("lengths", "frequencies"))
        positions, is_kept = op.rotary.positions(sums.xp, lengths, op.m)
        return (positions.astype(sums.xp.float32)[:, None] * frequencies).astype(sums.xp.float64), is_kept

    def step(self, op: Product) -> str:
        return "rotate queries and keys, write to the cache"

    def broken(self, op: Product) -> list[Broken]:
        if op.rotary is None:
            return []
        rotary, own = op.rotary, "an op with a rotary embedding may have only a bias and a norm"
        options = {
            "activation": op.activation is not Activation.IDENTITY,
            "gated": op.gated,
            "residual": op.residual,
            "row_scale": op.row_scale,
        }
        found: list[Broken] = [
            (name, f"{op.name} is rotated, and {own}", "leave it out") for name, is_set in options.items() if is_set
        ]
        if op.n != rotary.num_pairs:
            problem = (
                f"{rotary.heads} heads, and {rotary.kv_heads} of keys and of values, of {rotary.head_dim} elements "
                f"are {2 * rotary.num_pairs} columns, but the op has {2 * op.n}"
            )
            found.append(("n", problem, f"use {2 * rotary.num_pairs}"))
        if op.m % rotary.new_tokens:
            problem = f"{op.m} rows are not {rotary.new_tokens} new tokens of each sequence"
            found.append(("rotary.new_tokens", problem, f"use a multiple of {rotary.new_tokens} rows"))
        elif (rows := rotary.num_cache_rows(op.m)) > MOST_ROWS:
            problem = f"the cache has {rows} rows per head; a kernel supports at most {MOST_ROWS}"
            found.append(("rotary.max_length", problem, "use a shorter one, or fewer sequences"))
        return found

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        return op.rotary.tensors(op.name, op.m, dtype) if op.rotary else ()

    def listed(self, op: Product, dtype: Dtype, cache: str) -> tuple[tuple[str, Tensor], ...]:
        """Lists the cache under one name for all its readers."""
        found = []
        for role, tensor in super().listed(op, dtype, cache):
            name = f"{cache}.{role}" if role in OF_CACHE else tensor.name
            found.append(("cache" if role in CACHES else role, replace(tensor, name=name)))
        return tuple(found)

    def operands(self, op: Product) -> tuple[str, ...]:
        return tuple(f"{op.name}.{name}" for name in op.rotary.operands) if op.rotary else ()

    def arguments(self, op: Product, cache: str) -> tuple[Argument, ...]:
        """`RotaryArgs`, and with pages `PageArgs`."""
        assert op.rotary is not None
        sizes, numbers = op.rotary, ("heads", "kv_heads", "max_length", "new_tokens")
        found = [
            Argument(name=name, meaning=meaning, tensor=f"{op.name if name == 'frequencies' else cache}.{name}")
            for name, meaning in _POINTERS.items()
        ]
        found += [_number(name, getattr(sizes, name)) for name in numbers]
        if paged := sizes.paged(op.m):
            found += [Argument(name="pages", meaning="int32 for each sequence and page", tensor=f"{cache}.pages")]
            found += [_number("max_pages", paged.pages_of(sizes)), _number("num_pages", paged.num_pages)]
            lines = paged.page_tokens * sizes.kv_heads
            found += [_number("line", sizes.head_dim), _number("page_lines", lines)]
        return tuple(found)

    def constants(self, op_index: int, op: Product) -> str:
        assert op.rotary is not None
        numbers = f"kRotaryOp = {op_index}, kRotaryHeadDim = {op.rotary.head_dim}"
        numbers += f", kRotaryPageTokens = {op.rotary.page_tokens or 0}"
        order = f"[[maybe_unused]] constexpr bool kRotaryHeadsFirst = {str(op.rotary.heads_first).lower()};"
        return f"#define TUNER_ROTARY\nconstexpr int {numbers};\n{order}\n"

    def latency_reads(self, op: Product) -> int:
        """The lengths, and the page of each token."""
        assert op.rotary is not None
        return 1 if op.rotary.page_tokens is None else 2

    def words(self, op: Product) -> Mapping[str, str]:
        return {"sizes": "rotary"}

    def action(self, op: Product) -> str:
        assert op.rotary is not None
        tokens = op.rotary.page_tokens
        to = "a cache" if tokens is None else f"pages of {tokens} tokens of a cache"
        return f"rotates queries and keys, writes keys and values to {to}"

    def torch(self, op: Product) -> str:
        return "PyTorch has no call that rotates queries and keys and writes to a cache: compare without it"


_POINTERS = {
    "keys": "key cache, appended to",
    "values": "value cache, appended to",
    "lengths": "int32 for each sequence, new tokens included",
    "frequencies": "fp32, radians per token for each pair",
}


def _number(name: str, value: int) -> Argument:
    return Argument(name=name, type="int32", meaning=str(value), value=value)
