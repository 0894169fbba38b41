// A bias [n] that is added to each scaled sum; [2n] if a column has two rows of W, the first half's first.
#pragma once
#include "activation.cuh"

template <int kOp>
struct Bias {
  static __device__ constexpr bool is_there() { return kOps[kOp].bias; }

  // The bias of a column inside the matrix; `half` is 1 for the second row of W.
  static __device__ __forceinline__ float one(const OpArgs& op, int column, int half) {
    if constexpr (is_there()) {
      return Element::widen(op.bias[half * op.n + column]);
    } else {
      return 0.0f;
    }
  }

  // The biases of two columns, starting at `column`.
  static __device__ __forceinline__ void two(float (&values)[2], const OpArgs& op, int column, int half) {
    load_two(values, op.bias + half * op.n, column, op.n);
  }

  // Prefetches at most `count` columns into the L2, starting at `column`. Without it, a tile would wait for memory at
  // its end.
  static __device__ __forceinline__ void prefetch(const OpArgs& op, int column, int count) {
    if constexpr (is_there()) {
      constexpr int kPerLine = 128 / sizeof(*op.bias), kHalves = kOps[kOp].gated ? 2 : 1;
      const int end = min(column + count, op.n);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll 1
        for (int i = column; i < end; i += kPerLine) prefetch_l2(op.bias + half * op.n + i);
      }
    }
  }

  // Adding a zero would be an instruction, since it changes -0 to 0.
  static __device__ __forceinline__ float apply(float sum, float bias) {
    if constexpr (is_there()) sum += bias;
    return sum;
  }
};
