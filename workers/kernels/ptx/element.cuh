// The element type of the tensors: its row's functions. A generated source puts them in the place of these declarations,
// which document a row's members, and let each file compile alone.
#pragma once
#include "ptx.cuh"

#ifndef TUNER_ELEMENT
#define TUNER_ELEMENT
struct Element {
  using Bits = u16;  // how it is stored: an unsigned integer of its size
  static constexpr Bits kNan = 0x7FFF;
  // Whether two neighbours fill a word, and whether sums of its products are added to separate ones as they arrive.
  enum : bool { kHasPairs = true, kPromotesSums = false };
  __device__ static float widen(Bits bits);
  // To nearest even: the bits in a word, after zeros.
  __device__ static u32 narrow(float value);
  // For the engines of tensor cores. Two into one word, `low` in the low half, each in 16 bits.
  __device__ static u32 narrow_two(float low, float high);
  // Of 16-bit elements: d += a b for one 16 x 8 x 16 fragment, fp32 accumulation.
  __device__ static void multiply(float* d, const u32 (&a)[4], const u32 (&b)[2]);
};
#endif

#ifndef TUNER_WEIGHTS
// How weights are stored: as elements. Where that is a code of fewer bits, `convert` makes pairs of elements of a word of
// codes, and with groups this many share a factor.
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

// The element type of an op's residual: elements of 8 bits hold none, so there it is that of the output.
template <int kOp, bool kIsSmall = sizeof(Element::Bits) == 1>
struct AddedTo {
  using Type = Element;
};
template <int kOp>
struct AddedTo<kOp, true> {
  using Type = Output<kOp>;
};
