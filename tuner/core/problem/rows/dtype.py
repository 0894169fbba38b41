"""What the program has to know of an element type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.rows.added import FIRST_ADDED_NUMBER
from tuner.errors import InvalidInput

Array = Any  # a numpy.ndarray, or a cupy.ndarray
ArrayModule = Any  # numpy, or cupy

#: Bits of an element that memory can hold by itself.
_BITS = (8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class VendorType:
    """What an interface of CUDA calls an element type."""

    #: Name of its enumeration, e.g. ``CUDA_R_16F``.
    name: str
    number: int


@dataclass(frozen=True, kw_only=True)
class DtypeRow:
    """One element type."""

    #: As JSON has it.
    name: str
    #: Bits of an element.
    bits: int
    #: In packs and in the C API, where it is TUNER_ and the name; never another type's. Packages take numbers from
    #: 128 on.
    number: int
    #: What NumPy, CuPy, PyTorch and configs of transformers call it; of those that do not know it, arrays of unsigned
    #: integers hold its bits.
    array_name: str
    #: NumPy's type string, as ``__cuda_array_interface__`` has it; empty where there is none.
    typestr: str = ""
    #: DLPack's type code and bits; None where there is none. Source: dlpack.h, DLDataTypeCode.
    dlpack: tuple[int, int] | None = None

    @property
    def is_added(self) -> bool:
        """Whether a package brings it."""
        return self.number >= FIRST_ADDED_NUMBER

    @property
    def size_bytes(self) -> int:
        """Bytes per element."""
        return self.bits // 8

    @property
    def bits_name(self) -> str:
        """What array modules call unsigned integers of its size."""
        return f"uint{self.bits}"


@dataclass(frozen=True, kw_only=True)
class OperandRow(DtypeRow):
    """An element type in which kernels take operands and give results; sums are fp32."""

    #: Unit roundoff of rounding to nearest even.
    roundoff: float
    #: The distance between neighbours around zero.
    smallest_step: float
    #: Largest ||out - reference|| / ||reference||.
    max_rel_error: float
    #: The bits of a NaN.
    nan_bits: int
    #: Of the array module and float32 values, nearest even: the bits, unsigned integers of the element's size.
    to_bits: Callable[[ArrayModule, Array], Array]
    #: Of the array module and such bits: the values, in float32 or wider, or in the module's own type of this name.
    from_bits: Callable[[ArrayModule, Array], Array]
    #: Members of the device code's `struct Element`, as element.cuh lists them: `widen` and `narrow`, and with a
    #: `tensor_kind` `narrow_two` and `multiply`.
    device: str
    #: What PTX calls it in products of tensor cores of k = 16 (``mma``, ``wgmma``); None: `simt` alone multiplies it.
    tensor_kind: str | None = None
    #: What PTX calls it in products of 8-bit elements (``wgmma`` of k = 32), whose sums are promoted; None: not one.
    fp8_kind: str | None = None
    #: How many times as fast as elements of 16 bits they pass the tensor cores. Source: NVIDIA, "H100 Tensor Core GPU
    #: Architecture", 2022, table 1.
    tensor_speed: float = 1.0
    #: What sums of its products lose on tensor cores beside fp32 roundings, of their size in the mean.
    sum_roundoff: float = 0.0
    #: The type in which a vendor's library leaves sums of its products; empty for its own.
    sums: str = ""
    #: The largest finite number; what is larger is stored as that one. None: it becomes an infinity.
    largest: float | None = None
    #: What a GPU must have to convert it.
    compute_capability: tuple[int, int] = (8, 0)
    #: CUtensorMapDataType; None: no engine that copies by tensor maps takes it.
    tensor_map: VendorType | None = None
    #: cudaDataType, for the vendor's library.
    library: VendorType | None = None

    def __post_init__(self) -> None:
        if self.bits not in _BITS:
            given = f"{self.bits} bits"
            raise InvalidInput(f"dtype {self.name}", f"an element has {given}", f"use one of {_BITS}")
        if self.tensor_kind is not None and self.bits != 16:
            problem = f"has {self.bits} bits and a tensor_kind, but tensor-core engines need 16"
            raise InvalidInput(f"dtype {self.name}", problem, "leave out tensor_kind: simt multiplies it")
        if self.fp8_kind is not None and self.bits != 8:
            problem = f"has {self.bits} bits and an fp8_kind, but fp8 has 8"
            raise InvalidInput(f"dtype {self.name}", problem, "leave out fp8_kind: simt multiplies it")

    @property
    def map_type(self) -> VendorType:
        """`tensor_map` of a type that an engine copies so.

        Raises:
            InvalidInput: none does.
        """
        return _needed(self, self.tensor_map, "tensor_map")

    @property
    def library_type(self) -> VendorType:
        """`library` of a type that the vendor's library multiplies.

        Raises:
            InvalidInput: it does not.
        """
        return _needed(self, self.library, "library")


def _needed(row: OperandRow, found: VendorType | None, field: str) -> VendorType:
    if found is None:
        raise InvalidInput(
            f"dtype {row.name}", f"its row has no {field}", "add it to the row, or do without what needs it"
        )
    return found
