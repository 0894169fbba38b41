// The rotary epilogue of engines whose threads hold adjacent elements of both halves: the rounded values, two per word.
#pragma once
#include "rotary.cuh"

// Two adjacent elements of both halves, rounded.
struct Pairs {
  u32 first, second;
};

// A row's pairs `column` and `column` + 1, from the sums of both halves.
template <int kOp>
__device__ __forceinline__ Pairs finish_pairs(const LaunchArgs& launch, const NewToken& token, int column, const float* x_sums,
                                              const float* y_sums, float scale, const float (&x_bias)[2],
                                              const float (&y_bias)[2]) {
  float x[2], y[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    x[c] = affine<kOp>(x_sums[c], scale, x_bias[c]);
    y[c] = affine<kOp>(y_sums[c], scale, y_bias[c]);
    turn_pair(x[c], y[c], turn_of(launch, token, column + c));
  }
  return {Element::narrow_two(x[0], x[1]), Element::narrow_two(y[0], y[1])};
}
