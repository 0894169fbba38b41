"""Decode attention as an op of a workload: the tensors that it reads, and the lengths at which it is timed."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self, get_type_hints

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import OpKind
from tuner.core.problem.ops.codec import hints_of, is_needed
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import LaunchOp, Op, OpWords, Tensor, cache, given, output
from tuner.errors import InvalidInput
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm, form_for, form_to_json
from tuner.ops.attention.shapes.place import check_attention, check_cache
from tuner.ops.attention.shapes.shape import DecodeAttention

#: The key that marks an op's JSON form as an attention; a GEMM has none.
ATTENTION = "attention"
#: The remedy if the queries have a different shape.
_AS_MANY_HEADS = "make the producer's m and n those of the attention: new tokens of all sequences, columns of all heads"
#: Fields of the shape that appear in the JSON form only if they are set.
_LATER_SHAPE = {"scale": None}
#: Fields of the form in the JSON form.
_FORM = ("page_tokens", "heads_first", "window", "soft_cap")


class Lengths(StrEnum):
    """The lengths at which an attention is timed. Results are also checked at other lengths."""

    #: Each sequence has the maximum length.
    FULL = "full"
    #: Drawn uniformly between the number of new tokens and the maximum; the same ones each time for a shape.
    UNIFORM = "uniform"


@dataclass(frozen=True, kw_only=True)
class AttentionOp(LaunchOp):
    """The output [m, n] of decode attention: one row per new token of each sequence, with its heads concatenated.

    It reads queries of that shape and its own operands: the caches of keys and of values, int32 lengths, and for a
    paged cache the int32 table of its pages.
    """

    KIND: ClassVar[str] = ATTENTION
    FREE: ClassVar[tuple[str, ...]] = ("sequences", "max_length")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE
    SERVES_FEWER_ROWS: ClassVar[bool] = True

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Sequences, heads, tokens, element type.
    shape: DecodeAttention
    #: The tensor read as queries: an earlier op's name, or any other name for an input.
    source: str = "q"
    #: The lengths at which it is timed.
    lengths: Lengths = Lengths.FULL
    #: The longest of the timed lengths; None for the maximum of a launch.
    timed_length: int | None = None
    #: Properties other than the shape: a paged cache, a sliding window, a soft cap on the scores.
    form: AttentionForm = PLAIN

    def __post_init__(self) -> None:
        """Checks that a paged cache has room for all longest contexts, and that the timed lengths are possible.

        Raises:
            InvalidInput: the cache has more or fewer pages, or a timed length is impossible.
        """
        least, most = self.shape.new_tokens, self.shape.max_length
        if self.timed_length is not None and not least <= self.timed_length <= most:
            problem = f"is {self.timed_length}, and a context here has {least} to {most} tokens"
            raise InvalidInput("timed_length", problem, "use a value in this range, or leave it out for the longest")
        if self.form.paged is None:
            return
        given, needed = self.form.paged.num_pages, self.shape.sequences * self.form.paged.pages_of(self.shape)
        if given != needed:
            problem = f"{given} pages, but the longest contexts need {needed} in all"
            raise InvalidInput("num_pages", problem, "leave it out: a launch says how many there are")

    @property
    def m(self) -> int:
        """Rows of queries and of the output: new tokens of all sequences."""
        return self.shape.sequences * self.shape.new_tokens

    @property
    def n(self) -> int:
        """Columns of queries and of the output: those of all query heads."""
        return self.shape.kv_heads * self.shape.query_heads * self.shape.head_dim

    @property
    def c_columns(self) -> int:
        """Elements per row of the output, as for a product."""
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        """Names of the tensors that the op reads."""
        return (Read("queries", self.source, (self.m, self.n), blame="source", remedy=_AS_MANY_HEADS),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """Queries, both caches, lengths, the table of pages, and the output."""
        shape, paged = self.shape, self.form.paged
        matrix, within = (self.m, self.n), (0, shape.max_length)
        found = [given(self.source, matrix, dtype)]
        found += [cache(f"{self.name}.{name}", self.cache_shape, dtype) for name in ("keys", "values")]
        found += [given(f"{self.name}.lengths", (shape.sequences,), "int32", range=within)]
        if paged:
            table = (shape.sequences, paged.pages_of(shape))
            found += [given(f"{self.name}.pages", table, "int32", range=(-1, paged.num_pages - 1))]
        return (*found, output(self.name, matrix, dtype))

    def own_bytes(self, dtype: Dtype, written: Collection[str]) -> int:
        """Zero: next to the cache, lengths and pages are negligible."""
        return 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows, columns and the longest context."""
        return (self.m, self.n, self.shape.max_length)

    @property
    def ladder_key(self) -> tuple[int, ...]:
        """Empty: a launch may have fewer sequences, in padded slots."""
        return ()

    @property
    def num_tiles(self) -> int:
        """Number of pairs of a sequence and a KV head."""
        return self.shape.sequences * self.shape.kv_heads

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:
        """Checks that the op is allowed at its position in the workload.

        Raises:
            InvalidInput: the message says what is expected.
        """
        if self.shape.dtype is not dtype:
            problem = f"{self.name} has dtype {self.shape.dtype}, but the workload has {dtype}"
            raise InvalidInput("dtype", problem, "use one element type for all ops")
        check_attention(self, ops)

    def check_shared(self, ops: Sequence[Op]) -> None:
        """Checks that the attention reads the cache that the op before it writes to, if there is one.

        Raises:
            InvalidInput: the message says what is expected.
        """
        check_cache(self, self.shape, self.form, ops)

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """Shape of keys, and of values."""
        if self.form.paged is not None:
            return self.form.paged.shape(self.shape)
        return (self.shape.sequences, self.shape.kv_heads, self.shape.max_length, self.shape.head_dim)

    @property
    def timed_lengths(self) -> tuple[int, ...]:
        """The lengths of the sequences, including new tokens."""
        shape, longest = self.shape, self.timed_length or self.shape.max_length
        if self.lengths is Lengths.FULL:
            return (longest,) * shape.sequences
        drawn = random.Random(0)
        return tuple(drawn.randint(shape.new_tokens, longest) for _ in range(shape.sequences))

    @property
    def num_tokens(self) -> int:
        """Tokens that queries see, in all contexts, at the timed lengths."""
        return sum(length - self.form.first_seen(self.shape, length) for length in self.timed_lengths)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values that a timed launch has to read."""
        return self.shape.cache_bytes(self.num_tokens)

    @property
    def num_flops(self) -> int:
        """Multiplications and additions of both products, for a timed launch."""
        return 4 * self.num_tokens * self.shape.new_tokens * self.n

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse. The element type is the workload's."""
        data = {"op": ATTENTION, "name": self.name, "source": self.source, **asdict(self.shape)}
        del data["dtype"]
        for field, default in _LATER_SHAPE.items():
            if data[field] == default:
                del data[field]
        data |= form_to_json(self.form)
        data |= {} if self.timed_length is None else {"timed_length": self.timed_length}
        return data | ({} if self.lengths is Lengths.FULL else {"lengths": str(self.lengths)})

    @classmethod
    def from_json(cls, data: dict[str, Any], dtype: Dtype) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a field is out of range.
        """
        own = {"op", "name", "source", "lengths", "timed_length", *_FORM}
        shape = DecodeAttention(**{field: value for field, value in data.items() if field not in own}, dtype=dtype)
        return cls(
            name=data["name"],
            source=data["source"],
            lengths=Lengths(data.get("lengths", Lengths.FULL)),
            timed_length=data.get("timed_length"),
            shape=shape,
            form=form_for(shape, **{field: data[field] for field in _FORM if field in data}),
        )

    @classmethod
    def json_hints(cls) -> dict[str, tuple[Any, bool]]:
        """The types of the JSON keys; the fields of shape and form are on the same level as the op's own."""
        own, shape, form = hints_of(cls), hints_of(DecodeAttention), get_type_hints(form_for)
        return {
            **{name: (own[name], True) for name in ("name", "source")},
            **{name: (own[name], False) for name in ("lengths", "timed_length")},
            **{one.name: (shape[one.name], is_needed(one)) for one in fields(DecodeAttention) if one.name != "dtype"},
            **{name: (form[name], False) for name in _FORM},
        }

    def describe(self, *, with_rows: bool = True) -> str:
        """A few words, e.g. ``16 x 2048 tokens, 32 heads of 128 over 8``."""
        shape = self.shape
        new = f", {shape.new_tokens} new" if shape.new_tokens > 1 else ""
        drawn = "" if self.lengths is Lengths.FULL else f" {self.lengths}"
        drawn += "" if self.timed_length is None else f" timed at {self.timed_length}"
        rows = f"{shape.sequences} x " if with_rows else ""
        heads = f"{shape.kv_heads * shape.query_heads} heads of {shape.head_dim} over {shape.kv_heads}"
        return f"{rows}{shape.max_length} tokens{drawn}{new}, {heads}{self.form.describe()}"

    def words(self) -> OpWords:
        """The op's row in a table of a chain's ops."""
        return OpWords(sizes=self.describe(), reads=self.source, named={"source": self.source}, function="softmax")

    def place_of(self, row: int, column: int) -> str:
        """The position of an element of the output, as text."""
        sequence, token = divmod(row, self.shape.new_tokens)
        head, dim = divmod(column, self.shape.head_dim)
        return f"sequence {sequence}, new token {token}, head {head}, element {dim}"


KIND = OpKind(op=AttentionOp, version=1)
