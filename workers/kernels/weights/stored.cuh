// Weights as they are stored: elements, or codes of fewer bits, which kernels convert in registers.
//
// Layout. A tensor of codes has the codes of all rows, followed by lists: for each kBundle columns the factors of each
// row's groups, then their zero points. A stage of a tile has the codes of its rows, and then the lists of its columns.
#pragma once
#include "config.cuh"
#include "element.cuh"

__device__ constexpr bool converts_weights() { return Weights::kBits < static_cast<int>(8 * sizeof(Element::Bits)); }

// Columns of a row of weights as they are stored, in elements' sizes.
__device__ constexpr int stored_columns(int k) {
  return converts_weights() ? k / static_cast<int>(8 * sizeof(Element::Bits) / Weights::kBits) : k;
}
template <int kOp>
constexpr int kStoredK = stored_columns(kOps[kOp].tile_k);

// Columns whose groups' factors are adjacent, their bytes per row in a list, and the lists per stage. Without groups, a
// bundle is only a unit of the loop.
enum : int {
  kBundle = Weights::kGroup > 0 ? Weights::kBundle : 128,
  kListBytes = Weights::kGroup > 0 ? kBundle / (Weights::kGroup > 0 ? Weights::kGroup : 1) * Weights::kFactorBytes : 0
};
__device__ constexpr int lists_of(const OpConfig& op) {
  return Weights::kGroup > 0 ? op.tile_k / kBundle * (1 + Weights::kHasZeros) : 0;
}

// Bytes of a stage of an op's weights.
__device__ constexpr int stored_bytes(const OpConfig& op) {
  return op.weight_rows() * (stored_columns(op.tile_k) * static_cast<int>(sizeof(Element::Bits)) + lists_of(op) * kListBytes);
}

// The factor of a group, as a number.
__device__ __forceinline__ float factor_of(u32 bits) {
  if constexpr (Weights::kFactorBytes == sizeof(float)) {
    return __uint_as_float(bits);
  } else {
    return Element::widen(static_cast<Element::Bits>(bits));
  }
}
