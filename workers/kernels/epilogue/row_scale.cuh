// A factor for each row of the sums, fp32 [m]; 1 if the op has none. For norms, norm.cuh computes the factor.
#pragma once
#include "norm.cuh"

template <int kOp>
struct RowScale {
  static __device__ constexpr bool is_there() { return kOps[kOp].row_scale; }

  // The factor of a row that may be outside the matrix.
  static __device__ __forceinline__ float of(const OpArgs& op, int row) {
    if constexpr (is_there()) {
      return row < op.m ? op.row_scale[row] : 0.0f;
    } else {
      return 1.0f;
    }
  }

  // The same if it is known whether the row is inside.
  static __device__ __forceinline__ float of(const OpArgs& op, int row, bool is_inside) {
    if constexpr (is_there()) {
      return is_inside ? op.row_scale[row] : 0.0f;
    } else {
      return 1.0f;
    }
  }

  // Applies a row's factor, from either source, to a sum, if the op has one.
  static __device__ __forceinline__ float apply(float sum, float scale) {
    if constexpr (scales_rows(kOp)) sum *= scale;
    return sum;
  }
};
