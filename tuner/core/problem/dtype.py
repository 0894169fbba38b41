"""Element types of tensors."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """Element type of every tensor; accumulation is always fp32."""

    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def size_bytes(self) -> int:
        """Bytes per element."""
        return _SIZES_BYTES[self]

    def elements(self, num_bytes: int) -> int:
        """How many elements so many bytes hold."""
        return num_bytes // self.size_bytes


#: Whatever else depends on the size of an element asks `Dtype`, so that a new type is a row here.
_SIZES_BYTES = {Dtype.FP16: 2, Dtype.BF16: 2}
