"""A product as a client gives it, as an op of a chain."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_serializer

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.added import AddedPart, parts_from_json
from tuner.core.problem.epilogue.norm import DEFAULT_EPS
from tuner.core.problem.gemm_op import GemmOp
from tuner.core.problem.rotary import Rotary
from tuner.errors import InvalidInput
from tuner.wire.fields import ActivationName, Name, Size, Strict


class ChainRotary(Strict):
    """Rotary embedding of queries and keys, and the write of keys and values to the cache."""

    heads: int = Field(description="of queries; a row of the op has these, then those of keys, then those of values")
    kv_heads: int = Field(description="of keys, and of values: heads of the cache")
    head_dim: int = Field(description="elements of a head: 64 or 128")
    max_length: int = Field(description="tokens of the longest context, new ones included")
    new_tokens: int = Field(default=1, description="of each sequence, 1 to 8: its rows follow each other")
    page_tokens: int | None = Field(
        default=None, description="of a page of the cache: 16, 32 or 64; null for a contiguous cache"
    )
    heads_first: bool = Field(
        default=True, description="whether a page is [kv_heads, tokens, head_dim], else [tokens, kv_heads, head_dim]"
    )


class ChainOp(Strict):
    """C[m, n] = act(s[m] A[m, k] W[n, k]^T + bias) + R[m, n]; gated, W is [2n, k] and C is act(gate) * up + R."""

    name: Name = Field(description="of the op, and of the tensor that it writes")
    source: Name = Field(description="what it reads as A: an earlier op, or any other name for an input")
    n: Size = Field(description="columns of C, rows of W")
    k: Size = Field(description="columns of A and W")
    activation: ActivationName = Activation.IDENTITY
    gated: bool = Field(default=False, description="whether W holds a gate above an up projection")
    bias: bool = Field(default=False, description="whether a bias vector is added")
    residual: Name | None = Field(default=None, description="what is added: an earlier op, or a name for an input")
    row_scale: bool = Field(default=False, description="whether row i is multiplied by s[i], an fp32 input")
    norm: Name | None = Field(
        default=None, description="whose RMSNorm scales the rows: an earlier op, or an input with its squares' sums"
    )
    eps: float | None = Field(default=None, ge=0, lt=1, description="of the norm; 1e-5 unless given")
    is_output: bool = Field(default=False, description="whether the caller reads C, though another op does, too")
    rotary: ChainRotary | None = Field(
        default=None,
        description="whether C is queries, keys and values of new tokens, which are turned and written to a cache",
    )
    epilogue: list[dict[str, str | int | float | bool]] = Field(
        default_factory=list, description="parts that packages of the server bring: `part` names one, then its fields"
    )

    @model_serializer(mode="wrap")
    def _without_parts(self, handler: Any):  # type: ignore[no-untyped-def]  # without a type OpenAPI has the fields
        """Parts of packages are left out where there are none, as released documents have it."""
        data = handler(self)
        if not self.epilogue:
            data.pop("epilogue", None)
        return data

    def to_op(self, m: int, dtype: Dtype) -> GemmOp:
        """The op, for so many rows, of any element type.

        Raises:
            InvalidInput: a matrix overflows a 32-bit index, or options do not go together.
        """
        rotary = self._rotary()
        return GemmOp(
            name=self.name,
            m=m,
            n=self.n // 2 if rotary else self.n,
            k=self.k,
            source=self.source,
            activation=self.activation,
            bias=self.bias,
            gated=self.gated,
            residual=self.residual is not None,
            residual_source=self.residual or "",
            row_scale=self.row_scale,
            norm=self.norm or "",
            eps=DEFAULT_EPS if self.eps is None else self.eps,
            is_output=self.is_output,
            rotary=rotary,
            epilogue=self._epilogue(),
        )

    def _epilogue(self) -> tuple[AddedPart, ...]:
        try:
            return parts_from_json(self.epilogue)
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.{error.field}", error.problem, error.remedy) from error

    def _rotary(self) -> Rotary | None:
        if self.rotary is None:
            return None
        try:
            found = Rotary(**self.rotary.model_dump())
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.rotary.{error.field}", error.problem, error.remedy) from error
        if self.n != 2 * found.num_pairs:
            columns = 2 * found.num_pairs
            problem = f"is {self.n}, and heads of queries, keys and values have {columns} columns"
            raise InvalidInput(f"{self.name}.n", problem, f"give {columns}")
        return found

    @classmethod
    def from_op(cls, op: GemmOp) -> Self:
        """Inverse of `to_op`."""
        return cls(
            name=op.name,
            source=op.source,
            n=op.result_columns,
            k=op.k,
            activation=op.activation,
            gated=op.gated,
            bias=op.bias,
            residual=op.residual_source or None,
            row_scale=op.row_scale,
            norm=op.norm or None,
            eps=op.eps if op.norm else None,
            is_output=op.is_output,
            rotary=ChainRotary(**op.rotary.to_json()) if op.rotary else None,
            epilogue=[part.to_json() for part in op.epilogue],
        )


MODEL = ChainOp
