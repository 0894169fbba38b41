"""The base of all shapes in a pack: a workload without its sizes, which is the key of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Self

from tuner.core.problem.dtype import Dtype

Json = dict[str, Any]
#: Their numbers in `pack.bin`.
DTYPES = {str(dtype): dtype.row.number for dtype in Dtype}
#: Options of a product, as text.
OPTIONS = ("norm", "row_scale", "bias", "gated", "rotary", "residual")


class BaseShape:
    """The interface of all kinds."""

    #: Section of `pack.json`, of `POST /packs` and of an order.
    section: ClassVar[str]
    #: Whether a ladder is searched only by rows; otherwise by sequences and the longest context.
    by_rows: ClassVar[bool] = False

    @property
    def has_fixed_rows(self) -> bool:
        """Whether a kernel supports only the number of rows that it was made for."""
        return not self.by_rows

    def to_json(self) -> Json:
        """A dict of plain JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(**data)

    @property
    def name(self) -> str:
        """As text, unique within its section."""
        return str(self)


def is_product(op: Mapping[str, Any]) -> bool:
    """Whether an op of a manifest's workload is a matrix product."""
    return op.get("op") is None
