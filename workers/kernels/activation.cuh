// The elementwise functions of an epilogue.
#pragma once
#include "launch_args.cuh"

// In fp32. Each propagates NaN.
template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == kRelu) return x < 0.0f ? 0.0f : x;
  if constexpr (kActivation == kGelu) {
    // The tanh form; sqrt(2 / pi) and the cubic's coefficient are Hendrycks and Gimpel's, arXiv:1606.08415.
    const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
  }
  if constexpr (kActivation == kSilu) return x / (1.0f + __expf(-x));
  return x;
}

// Two columns from `column` on; those outside the matrix are zero.
__device__ __forceinline__ void load_two(float (&values)[2], const u16* row, int column, int n) {
  values[0] = column < n ? unpack_one<kBf16>(row[column]) : 0.0f;
  values[1] = column + 1 < n ? unpack_one<kBf16>(row[column + 1]) : 0.0f;
}
