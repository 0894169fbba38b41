"""Element types of tensors: one row each, plus rows that packages add."""

from __future__ import annotations

from enum import StrEnum
from string import Template

from tuner.core.problem.rows.added import added_rows, check_broken
from tuner.core.problem.rows.dtype import Array, ArrayModule, DtypeRow, OperandRow, VendorType

#: Entry-point group in which packages declare their element types.
GROUP = "tuner.dtypes"

#: Common to both 16-bit types, besides `widen`.
_SIXTEEN_BITS = Template("""\
  __device__ __forceinline__ static float widen(Bits bits) {
$widen
  }
  __device__ __forceinline__ static u32 narrow_two(float low, float high) {
    u32 packed;
    asm("cvt.rn.${kind}x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
  __device__ __forceinline__ static u32 narrow(float value) { return narrow_two(value, 0.0f); }
  __device__ __forceinline__ static void multiply(float* d, const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.$kind.$kind.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
""")
_WIDEN_FP16 = """\
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;"""


def _bf16_to_bits(xp: ArrayModule, values: Array) -> Array:
    """The upper half of a float32, rounded."""
    bits = values.astype(xp.float32).view(xp.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(xp.uint16)


#: In a kernel's epilogue, an element is passed in 16 bits, and packed when it is stored.
_E4M3 = """\
  __device__ __forceinline__ static float widen(Bits bits) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(bits)));
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(halves)));
    return value;
  }
  __device__ __forceinline__ static u32 narrow_two(float low, float high) {
    u16 bytes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bytes) : "f"(high), "f"(low));
    return (bytes & 0xFFu) | static_cast<u32>(bytes >> 8) << 16;
  }
  __device__ __forceinline__ static u32 narrow(float value) { return narrow_two(value, 0.0f); }
"""


def _e4m3_to_bits(xp: ArrayModule, values: Array) -> Array:
    """Rounds to e4m3: below 2^-6 the unit is 2^-9; above, there are three mantissa bits. 448 is the largest number."""
    bits = values.astype(xp.float32).view(xp.uint32)
    size = bits & 0x7FFFFFFF
    units = xp.rint(xp.minimum(size, 121 << 23).view(xp.float32) * xp.float32(2.0**9)).astype(xp.uint32)
    codes = xp.where(size < 121 << 23, units, (size + 0x7FFFF + ((size >> 20) & 1) >> 20) - (120 << 3))
    codes = xp.where(size > 255 << 23, 0x7F, xp.minimum(codes, 0x7E))
    return (codes | bits >> 24 & 0x80).astype(xp.uint8)


def _e4m3_from_bits(xp: ArrayModule, bits: Array) -> Array:
    """Moves exponent and mantissa to their positions in a float32, whose bias is larger by 120; below 2^-6 the unit is
    2^-9. No intermediate float32 is subnormal, since CuPy's kernels flush those to 0."""
    wide = bits.astype(xp.uint32)
    units = (wide & 0x07).astype(xp.float32) * xp.float32(2.0**-9)
    size = xp.where(wide & 0x78 == 0, units, (((wide & 0x7F) << 20) + (120 << 23)).view(xp.float32))
    signed = xp.where(wide & 0x80 != 0, -size, size)
    return xp.where(wide & 0x7F == 0x7F, xp.float32(float("nan")), signed)


#: For tensors other than operands: factors and sums of squares; lengths and pages.
FP32 = DtypeRow(name="fp32", bits=32, number=2, array_name="float32", typestr="<f4", dlpack=(2, 32))
#: For weights that are stored as codes.
UINT8 = DtypeRow(name="uint8", bits=8, number=5, array_name="uint8", typestr="|u1", dlpack=(1, 8))
INT32 = DtypeRow(name="int32", bits=32, number=3, array_name="int32", typestr="<i4", dlpack=(0, 32))


class Dtype(StrEnum):
    """Element type of every tensor; accumulation is always fp32."""

    row: OperandRow

    def __new__(cls, row: OperandRow | str) -> Dtype:
        """The member for a row; if given a name, looks up the existing member."""
        assert isinstance(row, OperandRow), row
        member = str.__new__(cls, row.name)
        member._value_, member.row = row.name, row
        return member

    FP16 = OperandRow(
        name="fp16",
        bits=16,
        number=0,
        array_name="float16",
        typestr="<f2",
        dlpack=(2, 16),
        roundoff=2.0**-11,
        smallest_step=2.0**-24,
        max_rel_error=2e-3,
        nan_bits=0x7FFF,
        to_bits=lambda xp, values: values.astype(xp.float16).view(xp.uint16),
        from_bits=lambda xp, bits: bits.view(xp.float16),
        device=_SIXTEEN_BITS.substitute(kind="f16", widen=_WIDEN_FP16),
        tensor_kind="f16",
        tensor_map=VendorType(name="CU_TENSOR_MAP_DATA_TYPE_FLOAT16", number=6),
        library=VendorType(name="CUDA_R_16F", number=2),
    )
    BF16 = OperandRow(
        name="bf16",
        bits=16,
        number=1,
        array_name="bfloat16",
        dlpack=(4, 16),
        roundoff=2.0**-8,
        smallest_step=2.0**-133,
        max_rel_error=1.6e-2,
        nan_bits=0x7FFF,
        to_bits=_bf16_to_bits,
        from_bits=lambda xp, bits: (bits.astype(xp.uint32) << 16).view(xp.float32),
        device=_SIXTEEN_BITS.substitute(kind="bf16", widen="    return __uint_as_float(static_cast<u32>(bits) << 16);"),
        tensor_kind="bf16",
        tensor_map=VendorType(name="CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", number=9),
        library=VendorType(name="CUDA_R_16BF", number=14),
    )
    FP8_E4M3 = OperandRow(
        name="fp8_e4m3",
        bits=8,
        number=4,
        array_name="float8_e4m3fn",
        dlpack=(10, 8),
        roundoff=2.0**-4,
        smallest_step=2.0**-9,
        max_rel_error=8e-2,
        nan_bits=0x7F,
        to_bits=_e4m3_to_bits,
        from_bits=_e4m3_from_bits,
        device=_E4M3,
        fp8_kind="e4m3",
        tensor_speed=2.0,
        # Within 128 products, the tensor cores keep 13 bits below the leading bit of the largest term: 132 terms lose
        # up to one unit each, of 2^-13 times at most four standard deviations of the sum.
        sum_roundoff=4 * (132 / 3) ** 0.5 * 2.0**-13,
        sums="bf16",
        largest=448.0,
        compute_capability=(8, 9),
        tensor_map=VendorType(name="CU_TENSOR_MAP_DATA_TYPE_UINT8", number=0),
        library=VendorType(name="CUDA_R_8F_E4M3", number=28),
    )
    locals().update(
        {row.name.upper(): row for row in added_rows(GROUP, OperandRow, (FP16, BF16, FP8_E4M3, FP32, INT32, UINT8))}
    )

    @classmethod
    def _missing_(cls, value: object) -> None:
        check_broken(GROUP, value)

    @property
    def size_bytes(self) -> int:
        """Bytes per element."""
        return self.row.bits // 8

    @property
    def sums(self) -> Dtype:
        """The type in which the vendor's library returns sums of products."""
        return Dtype(self.row.sums) if self.row.sums else self

    def elements(self, num_bytes: int) -> int:
        """Number of elements in `num_bytes` bytes."""
        return num_bytes // self.size_bytes


#: Types that models compute with directly, without scales.
UNSCALED = tuple(one for one in Dtype if not one.row.sums)

#: Every element type of a tensor, by name.
ELEMENTS: dict[str, DtypeRow] = {row.name: row for row in (*(one.row for one in Dtype), FP32, INT32, UINT8)}
#: CUtensorMapDataType of each type that has one, by name. Source: CUDA driver API, "Tensor Map Object Management".
MAP_TYPES = {one.row.tensor_map.name: one.row.tensor_map.number for one in Dtype if one.row.tensor_map}
