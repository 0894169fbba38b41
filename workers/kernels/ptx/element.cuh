// The functions of the tensors' element type. A generated source replaces these declarations, which document the
// members of a type's row, and let each file compile alone.
#pragma once
#include "ptx.cuh"

#ifndef TUNER_ELEMENT
#define TUNER_ELEMENT
struct Element {
  using Bits = u16;  // its storage: an unsigned integer of its size
  static constexpr Bits kNan = 0x7FFF;
  // Whether two adjacent elements fill a word, and whether the sums of its products are added to separate sums as they
  // arrive.
  enum : bool { kHasPairs = true, kPromotesSums = false };
  __device__ static float widen(Bits bits);
  // Rounds to nearest even; returns the bits in a word, preceded by zeros.
  __device__ static u32 narrow(float value);
  // For the engines of tensor cores. Packs two into one word, 16 bits each, `low` in the low half.
  __device__ static u32 narrow_two(float low, float high);
  // For 16-bit elements: d += a b for one 16 x 8 x 16 fragment, accumulated in fp32.
  __device__ static void multiply(float* d, const u32 (&a)[4], const u32 (&b)[2]);
};
#endif

#ifndef TUNER_WEIGHTS
// How weights are stored: by default as elements. If they are codes of fewer bits, `convert` converts a word of codes
// to pairs of elements; with groups, kGroup weights share a factor.
struct Weights {
  enum : int { kBits = 8 * sizeof(Element::Bits), kGroup = 0, kBundle = 0, kFactorBytes = 0, kHasZeros = 0, kHasPowers = 0 };
};
#endif

#ifndef TUNER_OUTPUTS
// The element type of an op's output.
template <int kOp>
struct OutputOf {
  using Type = Element;
};
#endif
template <int kOp>
using Output = typename OutputOf<kOp>::Type;

// The element type of an op's residual: that of the output if elements have 8 bits.
template <int kOp, bool kIsSmall = sizeof(Element::Bits) == 1>
struct AddedTo {
  using Type = Element;
};
template <int kOp>
struct AddedTo<kOp, true> {
  using Type = Output<kOp>;
};
