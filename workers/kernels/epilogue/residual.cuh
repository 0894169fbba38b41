// A residual [m, n] that is added to each element of C before it is rounded.
#pragma once
#include "activation.cuh"

// Bit i: op i adds the residual to each sum before the activation.
#ifndef TUNER_ADDED_TO_SUMS
#define TUNER_ADDED_TO_SUMS 0
#endif

template <int kOp>
struct Residual {
  static __device__ constexpr bool is_there() { return kOps[kOp].residual; }
  static __device__ constexpr bool is_of_sums() { return (TUNER_ADDED_TO_SUMS >> kOp & 1) != 0; }

  using Type = typename AddedTo<kOp>::Type;
  using Bits = typename Type::Bits;

  // The residual of an element inside the matrix, by its index in C.
  static __device__ __forceinline__ float one(const OpArgs& op, long long element) {
    if constexpr (is_there()) {
      return Type::widen(begin(op)[element]);
    } else {
      return 0.0f;
    }
  }

  // The residuals of two columns, starting at `column`, of the row that starts at `row` in C.
  static __device__ __forceinline__ void two(float (&values)[2], const OpArgs& op, long long row, int column) {
    load_two<Type>(values, begin(op) + row, column, op.n);
  }

  // The address of the residual, for loads of two adjacent elements as one word.
  static __device__ __forceinline__ const Bits* begin(const OpArgs& op) { return reinterpret_cast<const Bits*>(op.residual); }
  static __device__ __forceinline__ u32 word(const Bits* two) { return *reinterpret_cast<const u32*>(two); }
  // The lower element of a word.
  static __device__ __forceinline__ float widen(u32 word) { return Type::widen(static_cast<Bits>(word)); }

  static __device__ __forceinline__ float apply(float out, float residual) { return out + residual; }
};
