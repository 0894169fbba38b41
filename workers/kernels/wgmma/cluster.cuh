// Sharing in a cluster: one copy from the L2 fills the shared memory of several CTAs.
//
// Layout. A cluster is a grid of kClusterM x kClusterN CTAs, rank by rank along n, over the tile of one task; or
// kClusterK such grids, one after the other, each with different k-steps. CTAs of the same row of a grid multiply the
// same rows of the inputs, CTAs of the same column the same rows of the weights: these are the sharers of a ring. Every
// CTA holds whole stages of both operands, at the same addresses. If c CTAs share a stage, each requests one c-th of
// it, a slice, which the copy engine writes to the shared memory of all c CTAs.
//
// A slice is kLines whole lines of the stage. If there are fewer lines than sharers, a slice consists of some of the
// rows of one line. It is always one box, with rows in groups of eight, as the swizzle requires.
#pragma once
#include "config_wgmma.cuh"
#include "launch_args.cuh"

// kNumSharers CTAs whose ranks are kStride apart; both are powers of two.
template <int kNumSharers, int kStride>
struct Sharers {
  static constexpr int kCount = kNumSharers;

  // The CTA's index among its sharers.
  __device__ static __forceinline__ int place() { return rank_in_cluster() / kStride % kCount; }
  __device__ static __forceinline__ int rank_of(int place) {
    return (rank_in_cluster() & ~((kCount - 1) * kStride)) + place * kStride;
  }
  __device__ static __forceinline__ u16 ctas() {
    u32 bits = 0;
    for (int i = 0; i < kCount; ++i) bits |= 1u << i * kStride;
    return static_cast<u16>(bits << rank_of(0));
  }
};

using InputSharers = Sharers<kClusterN, 1>;
using WeightSharers = Sharers<kClusterM, kClusterN>;

// How kSharers CTAs divide a stage of kRows rows of kTileK columns; the same for a gate and an up projection.
template <int kRows, int kTileK, int kSharers>
struct Slice {
  static constexpr int kStageLines = kTileK / kLineColumns;
  static constexpr int kLineSlices = kStageLines < kSharers ? kStageLines : kSharers;
  static constexpr int kRowSlices = kSharers / kLineSlices;
  static constexpr int kNumLines = kStageLines / kLineSlices, kNumRows = kRows / kRowSlices;
  static_assert(kNumLines == 1 || kRowSlices == 1, "a slice with several lines has all their rows");
  static_assert(kNumLines * kLineSlices == kStageLines && kNumRows * kRowSlices == kRows, "slices are equal");
  static_assert(kNumRows % 8 == 0, "a slice has whole groups of eight rows, within which the swizzle permutes bytes");
};
