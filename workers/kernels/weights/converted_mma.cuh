// Weights with fewer bits than the inputs, which the warps convert in registers to operand B of mma.sync. So converted
// weights are never stored in memory.
//
// Layout. A stage holds the A tile, then the codes of its rows of weights as in global memory, swizzled like the A tile,
// and then the groups' lists. Codes are ordered so that ldmatrix gives each lane the word that it converts: an 8 x 8
// matrix of two bytes has 8 rows of 16 bytes, a *unit* of k, and lane 4 r + c has word c of row r.
//
// Groups. A group of codes of a row shares a factor. A power of two, or a zero point, is used for the conversion by the
// lane that has the row. Otherwise a group's products have separate sums, which are multiplied by the factors of their
// two columns and added to the tile's sums in fp32, so that the weights themselves are exact. Fragments of a unit have
// its groups' data, since the slot may be overwritten when the last unit of a stage is multiplied.
#pragma once
#include "mainloop_mma.cuh"

template <int kOp>
struct ConvertedProducts {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kTileN = kConfig.tile_n, kTileK = kConfig.tile_k, kWarpN = kTileN / kConfig.warps_n;
  static constexpr int kHalves = kConfig.weight_rows() / kConfig.tile_n;
  static constexpr int kFragsM = kConfig.tile_m / kConfig.warps_m / 16, kFragsN = kWarpN / 8 * kHalves;
  static constexpr int kUnit = 128 / Weights::kBits, kUnitSlices = kUnit / 16, kNumSlices = kTileK / kUnit;
  static constexpr bool kHasGroups = Weights::kGroup > 0, kScalesSums = kHasGroups && !Weights::kHasPowers;
  static constexpr int kGroup = kHasGroups ? Weights::kGroup : kTileK;
  static constexpr int kLists = lists_of(kConfig), kListsOfBundle = 1 + Weights::kHasZeros;
  using Layout = RowLayout<kTileK>;
  using CodeLayout = RowLayout<kStoredK<kOp>>;
  static constexpr int kWOffset = kConfig.tile_m * Layout::kRowBytes;
  static constexpr int kListOffset = kWOffset + kConfig.weight_rows() * CodeLayout::kRowBytes;
  // Fragments that one instruction loads: of a gate and of an up projection in turn, or in sequence.
  static constexpr int kLoaded = kFragsN % 4 == 0 ? 4 : 2;
  static_assert(kFragsN % 2 == 0, "a warp has pairs of fragments of weights");
  static_assert(kNumSlices % 2 == 0 && kGroup % kUnit == 0, "two fragment buffers alternate, and a group has whole units");

  // Row of a fragment in a warp's slice of W.
  __device__ static constexpr int row_of(int fragment) {
    return kHalves == 2 ? fragment / 2 * 8 + fragment % 2 * kTileN : fragment * 8;
  }

  // Copies the lists of a stage: those of the task's columns, and of the up projection, n rows further down.
  __device__ static __forceinline__ void copy_lists(const OpArgs& op, const Task& task, u32 stage, int k0) {
    constexpr int kRows = kHalves * kTileN, kPieces = kLists * kRows;
    const long long num_rows = static_cast<long long>(kHalves) * op.n;
    const u8* const lists = reinterpret_cast<const u8*>(op.w + num_rows * stored_columns(op.k));
#pragma unroll
    for (int first = 0; first < kPieces; first += kNumThreads) {
      const int piece = first + static_cast<int>(threadIdx.x);
      if (kPieces % kNumThreads != 0 && piece >= kPieces) break;
      const int row = piece % kRows, column = task.tile_n * kTileN + row % kTileN;
      const long long place = (k0 / kTileK * kLists + piece / kRows) * num_rows + row / kTileN * op.n + column;
      cp_async<kListBytes, kWeightHint>(stage + kListOffset + piece * kListBytes, lists + place * kListBytes,
                                        column < op.n ? kListBytes : 0);
    }
  }

  // Operand fragments of a unit: inputs, words of codes, and the data of its groups. A lane converts one row of each
  // fragment of weights, and has the sums of two columns.
  struct Fragments {
    u32 a[kUnitSlices][kFragsM][4];
    u32 codes[kFragsN];
    Weights::Beside beside[kFragsN];
    float factors[kFragsN][2];
  };

  // The start of this lane's ldmatrix rows in a stage, and of its rows in the first list. Offsets in a row change by xor
  // under the swizzle, since all rows that a lane reads are equal modulo 8.
  struct Lane {
    u32 a_row, a_swizzled, w_row, w_swizzled, converted, added;
    float sums[kScalesSums ? kFragsM * kFragsN * 4 : 1];  // of a group

    __device__ Lane() {
      const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
      const int a = warp / kConfig.warps_n * kFragsM * 16 + (lane & 15), column0 = warp % kConfig.warps_n * kWarpN;
      const int w = column0 + (lane & 7) + row_of(lane / 8 % kLoaded);
      a_row = a * Layout::kRowBytes;
      a_swizzled = Layout::offset(a, lane >> 4) - a_row;
      w_row = kWOffset + w * CodeLayout::kRowBytes;
      w_swizzled = CodeLayout::offset(w, 0) - w * CodeLayout::kRowBytes;
      converted = kListOffset + (column0 + lane / 4) * kListBytes;
      added = kListOffset + (column0 + lane % 4 * 2) * kListBytes;
    }
  };

  // The bits of a row's group in one of the lists of a stage.
  __device__ static __forceinline__ u32 listed(u32 row, int list, int number) {
    constexpr int kBytes = Weights::kFactorBytes, kBundleGroups = kBundle / kGroup;
    const int bundle = number / kBundleGroups, group = number % kBundleGroups;
    const u32 place = row + (bundle * kListsOfBundle + list) * kHalves * kTileN * kListBytes;
    if constexpr (kBytes == 1) {
      return static_cast<u32>(load_shared_bytes<4>(place + group / 4 * 4)) >> group % 4 * 8 & 0xFF;
    } else {
      return static_cast<u32>(load_shared_bytes<kBytes>(place + group * kBytes));
    }
  }

  __device__ static void load_fragments(Fragments& frags, const Lane& lane, u32 stage, int unit) {
#pragma unroll
    for (int slice = 0; slice < kUnitSlices; ++slice) {
      const u32 a = stage + lane.a_row + (lane.a_swizzled ^ ((unit * kUnitSlices + slice) * 32));
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) ldmatrix_x4(frags.a[slice][i], a + i * 16 * Layout::kRowBytes);
    }
    const u32 w = stage + lane.w_row + (lane.w_swizzled ^ (unit * 16));
#pragma unroll
    for (int j = 0; j < kFragsN; j += kLoaded) {
      u32 words[kLoaded];
      if constexpr (kLoaded == 4) {
        ldmatrix_x4(words, w + row_of(j) * CodeLayout::kRowBytes);
      } else {
        ldmatrix_x2(words, w + row_of(j) * CodeLayout::kRowBytes);
      }
#pragma unroll
      for (int i = 0; i < kLoaded; ++i) frags.codes[j + i] = words[i];
    }
    if constexpr (kHasGroups) {
      const int group = unit * kUnit / kGroup;
#pragma unroll
      for (int j = 0; j < kFragsN; ++j) {
        const u32 below = stage + row_of(j) * kListBytes;
        if constexpr (Weights::kHasPowers) frags.beside[j] = Weights::beside(listed(below + lane.converted, 0, group));
        if constexpr (Weights::kHasZeros) frags.beside[j] = Weights::beside(listed(below + lane.converted, 1, group));
        if constexpr (kScalesSums) {
          if ((unit + 1) * kUnit % kGroup == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) frags.factors[j][i] = factor_of(listed(below + lane.added + i * kListBytes, 0, group));
          }
        }
      }
    }
  }

  __device__ static __forceinline__ void multiply(float* acc, Lane& lane, const Fragments& frags, int unit) {
    const bool begins = unit * kUnit % kGroup == 0, ends = (unit + 1) * kUnit % kGroup == 0;
#pragma unroll
    for (int j = 0; j < kFragsN; ++j) {
      u32 pairs[2 * kUnitSlices];
      Weights::convert(frags.codes[j], pairs, frags.beside[j]);
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) {
        const int first = (i * kFragsN + j) * 4;
        float* const own = (kScalesSums ? lane.sums : acc) + first;
        if (kScalesSums && begins) own[0] = own[1] = own[2] = own[3] = 0.0f;
#pragma unroll
        for (int slice = 0; slice < kUnitSlices; ++slice) {
          const u32 b[2] = {pairs[2 * slice], pairs[2 * slice + 1]};
          Element::multiply(own, frags.a[slice][i], b);
        }
        if (kScalesSums && ends) {
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[first + e] = fmaf(frags.factors[j][e % 2], own[e], acc[first + e]);
        }
      }
    }
  }

  // Sums count in the steps of the conversion.
  __device__ __forceinline__ static void finish(float* acc) {
    if constexpr (kScalesSums) {
#pragma unroll
      for (int i = 0; i < kFragsM * kFragsN * 4; ++i) acc[i] *= Weights::kSteps;
    }
  }
};
