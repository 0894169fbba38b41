"""The properties of an element type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.rows.added import FIRST_ADDED_NUMBER
from tuner.errors import InvalidInput

Array = Any  # a numpy.ndarray, or a cupy.ndarray
ArrayModule = Any  # a numpy.ndarray, or a cupy.ndarray

#: Element sizes in bits that can be addressed in memory.
_BITS = (8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class VendorType:
    """An element type's name in an interface of CUDA."""

    #: Name of its enumeration, e.g. ``CUDA_R_16F``.
    name: str
    number: int


@dataclass(frozen=True, kw_only=True)
class TensorProduct:
    """How tensor cores multiply an element type."""

    #: Its PTX name.
    kind: str
    #: Names of the engines that have an instruction for it.
    engines: tuple[str, ...]
    #: The instruction of `wgmma`, a file in workers/kernels/ptx.
    instruction: str
    #: Maximum fp32 sums per thread if the tensor cores' sums are promoted, i.e. added to separate sums as they arrive;
    #: the thread also has as many sums of the tensor cores. None if they are not promoted.
    max_promoted: int | None = None


@dataclass(frozen=True, kw_only=True)
class DtypeRow:
    """One element type."""

    #: Its name in JSON.
    name: str
    #: Bits of an element.
    bits: int
    #: Its number in packs and in the C API, where it is called TUNER_ and the name; never reused. Packages take numbers
    #: from 128 on.
    number: int
    #: Its name in NumPy, CuPy, PyTorch and transformers configs; libraries that do not know it hold its bits as
    #: unsigned integers.
    array_name: str
    #: NumPy's type string, as in ``__cuda_array_interface__``; empty if there is none.
    typestr: str = ""
    #: DLPack's type code and bits; None if there is none. Source: dlpack.h, DLDataTypeCode.
    dlpack: tuple[int, int] | None = None

    @property
    def is_added(self) -> bool:
        """Whether it comes from a package."""
        return self.number >= FIRST_ADDED_NUMBER

    @property
    def size_bytes(self) -> int:
        """Bytes per element."""
        return self.bits // 8

    @property
    def bits_name(self) -> str:
        """The name of unsigned integers of its size in array modules."""
        return f"uint{self.bits}"


@dataclass(frozen=True, kw_only=True)
class OperandRow(DtypeRow):
    """An element type of kernel operands and results; sums are in fp32."""

    #: Unit roundoff of rounding to nearest even.
    roundoff: float
    #: The distance between neighbouring values around zero.
    smallest_step: float
    #: Largest ||out - reference|| / ||reference||.
    max_rel_error: float
    #: The bits of a NaN.
    nan_bits: int
    #: From the array module and float32 values to bits, nearest even: unsigned integers of the element's size.
    to_bits: Callable[[ArrayModule, Array], Array]
    #: From the array module and bits as above to values, in float32 or wider, or in the module's own type of this name.
    from_bits: Callable[[ArrayModule, Array], Array]
    #: Members of the device code's `struct Element` (see element.cuh): `widen` and `narrow`, and with a `tensor_kind`
    #: also `narrow_two` and `multiply`.
    device: str
    #: PTX name in tensor-core products with k = 16 (``mma``, ``wgmma``); None if only `simt` multiplies it.
    tensor_kind: str | None = None
    #: PTX name in products of 8-bit elements (``wgmma`` with k = 32), whose sums are promoted; None if it has none.
    fp8_kind: str | None = None
    #: Tensor-core speed relative to 16-bit elements. Source: NVIDIA, "H100 Tensor Core GPU Architecture", 2022, table
    #: 1.
    tensor_speed: float = 1.0
    #: Average error of its sums of products on tensor cores besides fp32 rounding, relative to the size of the sums.
    sum_roundoff: float = 0.0
    #: The type in which the vendor's library returns sums of its products; empty for the element type itself.
    sums: str = ""
    #: The largest finite number, at which larger values saturate; None if they become an infinity.
    largest: float | None = None
    #: Compute capability that is needed to convert it.
    compute_capability: tuple[int, int] = (8, 0)
    #: CUtensorMapDataType; None if engines with tensor maps do not support it.
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
    def tensor_product(self) -> TensorProduct | None:
        """How tensor cores multiply it; None if they do not."""
        if self.tensor_kind is not None:
            return TensorProduct(kind=self.tensor_kind, engines=("mma", "wgmma"), instruction="wgmma.in")
        if self.fp8_kind is not None:
            kind, instruction = self.fp8_kind, "wgmma8.in"
            return TensorProduct(kind=kind, engines=("wgmma",), instruction=instruction, max_promoted=96)
        return None

    @property
    def has_pairs(self) -> bool:
        """Whether two neighbouring elements fill a word of 32 bits, in which kernels read and store them."""
        return self.bits == 16

    @property
    def map_type(self) -> VendorType:
        """`tensor_map` of a type that has one.

        Raises:
            InvalidInput: the type has no tensor map.
        """
        return _needed(self, self.tensor_map, "tensor_map")

    @property
    def library_type(self) -> VendorType:
        """`library` of a type that the vendor's library supports.

        Raises:
            InvalidInput: the library does not support the type.
        """
        return _needed(self, self.library, "library")


def _needed(row: OperandRow, found: VendorType | None, field: str) -> VendorType:
    if found is None:
        raise InvalidInput(
            f"dtype {row.name}", f"its row has no {field}", "add it to the row, or do not use what needs it"
        )
    return found
