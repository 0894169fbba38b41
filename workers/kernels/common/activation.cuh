// The elementwise functions of an epilogue.
#pragma once
#include "launch_args.cuh"
#include "logistic.cuh"

// In fp32. Each propagates NaN.
template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
#ifndef TUNER_ACTIVATE
#define TUNER_ACTIVATE
  // One line for each activation of the kernel replaces this line.
#endif
  return x;
}

// Two columns, starting at `column`; those outside the matrix are zero.
template <class Type = Element>
__device__ __forceinline__ void load_two(float (&values)[2], const typename Type::Bits* row, int column, int n) {
  values[0] = column < n ? Type::widen(row[column]) : 0.0f;
  values[1] = column + 1 < n ? Type::widen(row[column + 1]) : 0.0f;
}
