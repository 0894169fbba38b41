// The operations of an epilogue on an element, part by part; each built-in part has its own file. Engines differ in
// where sums and factors are stored, and in when loads begin. Queries, keys and values come in pairs (rotary.cuh).
//
// Parts from packages have structs here, and are applied in one of three stages: to each sum, to the output before its
// residual, or to the result. They are only called with positions inside the matrix: sums outside use the values of the
// last row or column, and are not stored.
#pragma once
#include "bias.cuh"
#include "gate.cuh"
#include "residual.cuh"
#include "row_scale.cuh"

enum Stage : int { kOfSums, kOfOutput, kOfResult };

#ifndef TUNER_PART_STRUCTS
#define TUNER_PART_STRUCTS
// The struct of each part of a package replaces this line.
#endif

template <int kOp, Stage kStage>
__device__ __forceinline__ float apply_parts(float x, const OpArgs& op, int row, int column, int half = 0) {
#ifndef TUNER_PART_LINES
#define TUNER_PART_LINES
  // One line for each of them replaces this line.
#endif
  return x;
}

// A sum, scaled and with its bias.
template <int kOp>
__device__ __forceinline__ float affine(float sum, float scale, float bias) {
  return Bias<kOp>::apply(RowScale<kOp>::apply(sum, scale), bias);
}

// The sum of a row of W; `half` is 1 for rows of an up projection.
template <int kOp>
__device__ __forceinline__ float finish_sum(float sum, float scale, float bias, const OpArgs& op, int row, int column, int half) {
  return apply_parts<kOp, kOfSums>(affine<kOp>(sum, scale, bias), op, row, column, half);
}

// An element of C before its residual, from its sum and bias and those of the up projection, whose sum `up` returns.
template <int kOp, class Up>
__device__ __forceinline__ float finish_output(float sum, const Up& up, float scale, float bias, float up_bias, const OpArgs& op,
                                               int row, int column) {
  float out = activate<kOps[kOp].activation>(finish_sum<kOp>(sum, scale, bias, op, row, column, 0));
  if constexpr (Gate<kOp>::is_there()) out = Gate<kOp>::apply(out, finish_sum<kOp>(up(), scale, up_bias, op, row, column, 1));
  return apply_parts<kOp, kOfOutput>(out, op, row, column);
}

// The same with its residual, as it is rounded and stored.
template <int kOp>
__device__ __forceinline__ float finish_result(float out, const OpArgs& op, int row, int column) {
  return apply_parts<kOp, kOfResult>(out, op, row, column);
}

// Prefetches a part's values for these columns into the L2, then those for the second rows of W, in whole lines.
template <int kHalves, class Number>
__device__ __forceinline__ void prefetch_numbers(const Number* numbers, int n, int column, int count) {
  constexpr int kPerLine = 128 / sizeof(Number);
  const int end = min(column + count, n);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll 1
    for (int i = column / kPerLine * kPerLine; i < end; i += kPerLine) prefetch_l2(numbers + half * n + i);
  }
}

// Prefetches the per-column operands of a tile into the L2: `count` columns, starting at `column`. Without it, a tile
// would wait for memory at its end.
template <int kOp>
__device__ __forceinline__ void prefetch_of_columns(const OpArgs& op, int column, int count) {
  Bias<kOp>::prefetch(op, column, count);
#ifndef TUNER_PART_PREFETCHES
#define TUNER_PART_PREFETCHES
  // One line for each per-column tensor of a package's part replaces this line.
#endif
}
