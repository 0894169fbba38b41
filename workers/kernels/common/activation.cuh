// The elementwise functions of an epilogue.
#pragma once
#include "launch_args.cuh"

// x times the logistic function of y, to an ulp or two of it, in five instructions. A quotient that rounds as IEEE says is
// a call for the rare operands, and the compiler moves no other element's work across a call. What these two flush to zero is
// below 2^-126: beside 1, and of 1.
__device__ __forceinline__ float times_logistic(float x, float y) {
  return x * reciprocal_approx(1.0f + exp2_approx(-1.4426950408889634f * y));  // 2^(y log2 e) is e^y
}

// In fp32. Each propagates NaN.
template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == kRelu) return max_or_nan(x, 0.0f);
  if constexpr (kActivation == kGelu) {
    // The tanh form, (1 + tanh z) / 2 being the logistic function of 2 z; sqrt(2 / pi) and the cubic's coefficient are
    // Hendrycks and Gimpel's, arXiv:1606.08415.
    return times_logistic(x, 2.0f * 0.7978845608028654f * (x + 0.044715f * x * x * x));
  }
  if constexpr (kActivation == kSilu) return times_logistic(x, x);
  return x;
}

// A sum, scaled and with its bias, where the op has these: adding a zero would be an instruction, since it turns -0 to 0.
template <bool kRowScale, bool kBias>
__device__ __forceinline__ float affine(float sum, float scale, float bias) {
  if constexpr (kRowScale) sum *= scale;
  if constexpr (kBias) sum += bias;
  return sum;
}

// Two columns from `column` on; those outside the matrix are zero.
__device__ __forceinline__ void load_two(float (&values)[2], const Element::Bits* row, int column, int n) {
  values[0] = column < n ? Element::widen(row[column]) : 0.0f;
  values[1] = column + 1 < n ? Element::widen(row[column + 1]) : 0.0f;
}
