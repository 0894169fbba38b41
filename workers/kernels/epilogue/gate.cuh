// A gate: C is the activated gate times an up projection, whose rows of W come after the gate's.
#pragma once
#include "config.cuh"

template <int kOp>
struct Gate {
  static __device__ constexpr bool is_there() { return kOps[kOp].gated; }

  static __device__ __forceinline__ float apply(float gate, float up) { return gate * up; }
};
