// Helpers of the measuring protocol; never part of a candidate.

using u32 = unsigned int;
using u64 = unsigned long long;

// Keeps the stream busy for `cycles` of the SM clock, so that the host's launch latency stays out of what follows.
extern "C" __global__ void tuner_delay(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

// Reads `count` 16-byte vectors, so that what lay in the L2 before is gone; the sum keeps the loads alive.
extern "C" __global__ void tuner_flush(const uint4* buffer, long long count, u32* sink) {
  u32 sum = 0;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 v = buffer[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x5EED5EEDu) *sink = sum;
}

// A known-good kernel: out[i] = 3 i + seed. Run after a kill, before the next candidate.
extern "C" __global__ void tuner_probe(u32* out, u32 count, u32 seed) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 3 * i + seed;
}

// The library's missing epilogue: x = silu(x), in place, `count` elements of fp16 or bf16.
extern "C" __global__ void tuner_silu(unsigned short* x, long long count, int is_bf16) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    float value;
    unsigned short bits = x[i];
    if (is_bf16) {
      value = __uint_as_float(static_cast<u32>(bits) << 16);
    } else {
      asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    }
    value = value / (1.0f + __expf(-value));
    if (is_bf16) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    x[i] = bits;
  }
}
