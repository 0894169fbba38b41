"""Additional rows: fp8 with 5 exponent bits, fp32 operands, and squared ReLU."""

from __future__ import annotations

from typing import Any

from tuner.extend import ActivationRow, OperandRow, VendorType


def _to_e5m2(xp: Any, values: Any) -> Any:
    """The upper byte of an fp16, rounded to nearest even; NaN stays NaN."""
    half = values.astype(xp.float16)
    bits = half.view(xp.uint16).astype(xp.uint32)
    rounded = (bits + 0x7F + ((bits >> 8) & 1)) >> 8
    return xp.where(xp.isnan(half), 0x7F, rounded).astype(xp.uint8)


E5M2 = OperandRow(
    name="e5m2",
    bits=8,
    number=200,
    array_name="float8_e5m2",
    roundoff=2.0**-3 * (1 + 2.0**-8),  # of both roundings
    smallest_step=2.0**-16,
    max_rel_error=0.15,
    nan_bits=0x7F,
    to_bits=_to_e5m2,
    from_bits=lambda xp, bits: (bits.astype(xp.uint16) << 8).view(xp.float16),
    device="""\
  __device__ __forceinline__ static float widen(Bits bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits << 8)));
    return value;
  }
  __device__ __forceinline__ static u32 narrow(float value) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    if (value != value) return kNan;
    return static_cast<u32>(half) + 0x7Fu + (half >> 8 & 1u) >> 8 & 0xFFu;
  }
""",
)

FLOAT = OperandRow(
    name="single",
    bits=32,
    number=201,
    array_name="float32",
    roundoff=2.0**-24,
    smallest_step=2.0**-149,
    max_rel_error=1e-5,
    nan_bits=0x7FFFFFFF,
    to_bits=lambda xp, values: values.astype(xp.float32).view(xp.uint32),
    from_bits=lambda xp, bits: bits.view(xp.float32),
    device="""\
  __device__ __forceinline__ static float widen(Bits bits) { return __uint_as_float(bits); }
  __device__ __forceinline__ static u32 narrow(float value) { return __float_as_uint(value); }
""",
    library=VendorType(name="CUDA_R_32F", number=0),
)

DTYPES = (E5M2, FLOAT)

TOY_RELU2 = ActivationRow(
    name="toy_relu2",
    number=200,
    host=lambda xp, z: xp.maximum(z, 0) ** 2,
    device="max_or_nan(x, 0.0f) * max_or_nan(x, 0.0f)",
    torch=lambda functional, z: functional.relu(z) ** 2,
    spread=lambda xp, z, error: (2 * xp.abs(z) + error) * error,
)
