// Two convolutions in one launch. A tile's warpgroups, its team, copy the patch of the input that the tile depends on,
// compute the images between both convolutions for it, halo included, in shared memory, and from these the tile. No tile
// waits for another CTA; pixels of the halo are computed by several tiles.
//
// Filters are operand A of wgmma, pixels operand B, both by 8 channels and without swizzle: chunk * pitch + 16 * place.
// So the position in a filter is only an offset of the pixels' descriptor. geometry.py explains the places.
#pragma once
#include "logistic.cuh"
#include "ptx_conv_pair.cuh"

#ifndef TUNER_CONV_PAIR_CONFIG
#define TUNER_CONV_PAIR_CONFIG
// A region that a convolution reads for a tile; the members are those of `Region`.
template <int kPlace>
struct RegionOf;
template <>
struct RegionOf<0> {
  enum { kRows = 12, kColumns = 12, kScale = 1, kShift = -2, kStride = 1, kKernel = 3, kShare = 120, kSharers = 1 };
  enum { kPhaseColumns = 12, kPhasePlaces = 146, kPlaces = 147 };
};
template <>
struct RegionOf<1> {
  enum { kRows = 10, kColumns = 10, kScale = 1, kShift = -1, kStride = 1, kKernel = 3, kShare = 80, kSharers = 1 };
  enum { kPhaseColumns = 10, kPhasePlaces = 102, kPlaces = 103 };
};
enum { kImages = 1, kHeight = 56, kWidth = 56, kBetweenHeight = 56, kBetweenWidth = 56, kOutHeight = 56, kOutWidth = 56 };
enum { kChannels = 64, kBetween = 64, kFilters = 64, kTileRows = 8, kTileColumns = 8, kTilesDown = 7, kTilesAcross = 7 };
enum { kWarpgroups = 1, kTeam = 1, kSplitsFilters = 0, kHasBias = 1 };
enum { kHasAdded = 0, kNumStages = 1 };
enum { kFilterBytes0 = 74880, kFilterBytes1 = 74880, kPatchBytes = 18816, kMiddleBytes = 13184, kStageBytes = 11520 };
#endif

struct ConvPairArgs {
  const Element::Bits* images;
  const Element::Bits* first;
  const Element::Bits* first_bias;
  const Element::Bits* second;
  const Element::Bits* second_bias;
  Element::Bits* out;
  int num_tiles;
#ifndef TUNER_CONV_PAIR_ADDED
#define TUNER_CONV_PAIR_ADDED
};
__device__ __forceinline__ const Element::Bits* added_of(const ConvPairArgs&) { return nullptr; }
#endif

using Patch = RegionOf<0>;
using Middle = RegionOf<1>;
enum : int {
  kPairThreads = 128 * kWarpgroups,
  kTeamThreads = 128 * kTeam,
  kNumTeams = kWarpgroups / kTeam,
  kChunks0 = kChannels / 8,
  kChunks1 = kBetween / 8,
  kPitch0 = 16 * Patch::kPlaces,
  kPitch1 = 16 * Middle::kPlaces,
  kPitchA1 = 16 * (kBetween | 1),
  kPitchA2 = 16 * (kFilters | 1),
  kStagePitch = 144,
  kSpare = Middle::kPlaces - 1,  // a place that nothing reads
  kTileBytes = kPatchBytes + kMiddleBytes + kStageBytes * kNumStages * (kSplitsFilters ? kTeam : 1),
  kOwnBlocks = kFilters / 64 / (kSplitsFilters ? kTeam : 1),
};

// In fp32, after the bias. It propagates NaN.
__device__ __forceinline__ float activate_pair(float x) {
#ifndef TUNER_PAIR_ACTIVATION
#define TUNER_PAIR_ACTIVATION
  x = max_or_nan(x, 0.0f);
#endif
  return x;
}

// The place of a pixel of a region.
template <class Region>
__device__ __forceinline__ int place_of(int row, int column) {
  constexpr int kStride = Region::kStride;
  const int phase = row % kStride * kStride + column % kStride;
  return phase * Region::kPhasePlaces + row / kStride * Region::kPhaseColumns + column / kStride;
}

template <int kColumns>
struct SumsOf {
  float of[kColumns / 2];
};

// All steps of a product: filters `a`, pixels `b` of a region. The sums are zero before.
template <class Region, int kChunks>
__device__ __forceinline__ void multiply_all(SumsOf<Region::kShare>& sums, u32 a, u32 pitch_a, u32 b) {
  constexpr int kKernel = Region::kKernel, kStride = Region::kStride, kPitch = 16 * Region::kPlaces;
  const u32 a_units = a >> 4, b_units = b >> 4;
#pragma unroll
  for (int i = 0; i < Region::kShare / 2; ++i) sums.of[i] = 0.0f;
  wgmma_fence();
#pragma unroll
  for (int position = 0; position < kKernel * kKernel; ++position) {
    const int down = position / kKernel, right = position % kKernel;
    const int phase = down % kStride * kStride + right % kStride;
    const int at = phase * Region::kPhasePlaces + down / kStride * Region::kPhaseColumns + right / kStride;
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      Wgmma<Region::kShare>::multiply(sums.of, plain_descriptor(a_units + (position * kChunks + 2 * i) * (pitch_a >> 4), pitch_a),
                                      plain_descriptor(b_units + at + 2 * i * (kPitch >> 4), kPitch));
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
}

struct TilePlace {
  int row, column, image;
};
__device__ __forceinline__ TilePlace tile_place(int tile) {
  const int line = tile / kTilesAcross;
  return {line % kTilesDown * kTileRows, tile % kTilesAcross * kTileColumns, line / kTilesDown};
}

// Pixels outside of an image are zero.
__device__ __forceinline__ void copy_patch(u32 patch, const Element::Bits* images, const TilePlace& at, int thread) {
#pragma unroll 4
  for (int i = thread; i < kChunks0 * Patch::kRows * Patch::kColumns; i += kTeamThreads) {
    const int chunk = i % kChunks0, pixel = i / kChunks0, row = pixel / Patch::kColumns, column = pixel % Patch::kColumns;
    const int y = at.row * Patch::kScale + Patch::kShift + row, x = at.column * Patch::kScale + Patch::kShift + column;
    const bool is_there = static_cast<u32>(y) < kHeight && static_cast<u32>(x) < kWidth;
    const long long from = is_there ? (static_cast<long long>(at.image) * kHeight + y) * kWidth + x : 0;
    cp_async<16, kNoHint>(patch + chunk * kPitch0 + 16 * place_of<Patch>(row, column), images + from * kChannels + 8 * chunk,
                          is_there ? 16 : 0);
  }
}

template <int kCount, int kDepth, int kPitch>
__device__ __forceinline__ void copy_filters(u32 to, const Element::Bits* filters) {
#pragma unroll 8
  for (int i = threadIdx.x; i < kCount * kDepth / 8; i += kPairThreads) {
    const int filter = i / (kDepth / 8), chunk = i % (kDepth / 8);
    cp_async<16, kNoHint>(to + chunk * kPitch + 16 * filter, filters + static_cast<long long>(filter) * kDepth + 8 * chunk, 16);
  }
}

__device__ __forceinline__ float bias_of(const Element::Bits* bias, int filter) {
  return kHasBias ? Element::widen(bias[filter]) : 0.0f;
}

// The pixels of the images between that the warpgroup has summed, for 64 filters, to shared memory. Those outside of an
// image are the zeros around it.
__device__ __forceinline__ void store_middle(SumsOf<Patch::kShare>& sums, u32 to, const TilePlace& at, int from, int block, float low_bias,
                                             float high_bias) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int y0 = at.row * Middle::kScale + Middle::kShift, x0 = at.column * Middle::kScale + Middle::kShift;
  const bool is_inside = y0 >= 0 && x0 >= 0 && y0 + Middle::kRows <= kBetweenHeight && x0 + Middle::kColumns <= kBetweenWidth;
#pragma unroll
  for (int j = 0; j < Patch::kShare / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& low = sums.of[4 * j + e];
      float& high = sums.of[4 * j + 2 + e];
      low = activate_pair(low + low_bias), high = activate_pair(high + high_bias);
      if (!is_inside) {
        const int q = from + 8 * j + 2 * (lane % 4) + e, y = y0 + q / Patch::kPhaseColumns, x = x0 + q % Patch::kPhaseColumns;
        if (static_cast<u32>(y) >= kBetweenHeight || static_cast<u32>(x) >= kBetweenWidth) low = high = 0.0f;
      }
    }
  }
  const auto address_of = [&](int column, int half) {
    const int q = from + column, row = q / Patch::kPhaseColumns, x = q % Patch::kPhaseColumns;
    const int place = row < Middle::kRows && x < Middle::kColumns ? place_of<Middle>(row, x) : kSpare;
    return to + (8 * block + 2 * warp + half) * kPitch1 + 16 * place;
  };
#pragma unroll
  for (int j = 0; j + 1 < Patch::kShare / 8; j += 2) {
    const float* s = sums.of + 4 * j;
    store_blocks(address_of(8 * (j + lane / 16) + lane % 8, lane / 8 % 2), Element::narrow_two(s[0], s[1]),
                 Element::narrow_two(s[2], s[3]), Element::narrow_two(s[4], s[5]), Element::narrow_two(s[6], s[7]));
  }
  if constexpr (Patch::kShare / 8 % 2 == 1) {
    const float* s = sums.of + 4 * (Patch::kShare / 8 - 1);
    store_block(address_of(Patch::kShare - 8 + lane % 8, lane / 8 % 2), Element::narrow_two(s[0], s[1]), Element::narrow_two(s[2], s[3]));
  }
}

// The added image's pixels of the tile, for 64 filters, to where the output's are staged.
template <int kThreads>
__device__ __forceinline__ void copy_added(u32 stage, const Element::Bits* added, const TilePlace& at, int block) {
#pragma unroll 4
  for (int i = threadIdx.x % kThreads; i < kTileRows * kTileColumns * 8; i += kThreads) {
    const int pixel = i / 8, row = pixel / kTileColumns, column = pixel % kTileColumns;
    if (at.row + row < kOutHeight && at.column + column < kOutWidth) {
      const long long from = (static_cast<long long>(at.image) * kOutHeight + at.row + row) * kOutWidth + at.column + column;
      cp_async<16, kNoHint>(stage + (row * Middle::kPhaseColumns + column) * kStagePitch + 16 * (i % 8),
                            added + from * kFilters + 64 * block + 8 * (i % 8), 16);
    }
  }
}

// Adds the staged image to the warpgroup's sums. Other places of the stage have any value; so do their sums.
__device__ __forceinline__ void add_staged(SumsOf<Middle::kShare>& sums, u32 stage, int from) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const auto address_of = [&](int q, int half) { return stage + (from + q) * kStagePitch + (2 * warp + half) * 16; };
  const auto add_two = [](float* s, u32 two) {
    s[0] += Element::widen(static_cast<Element::Bits>(two)), s[1] += Element::widen(static_cast<Element::Bits>(two >> 16));
  };
#pragma unroll
  for (int j = 0; j + 1 < Middle::kShare / 8; j += 2) {
    u32 words[4];
    load_blocks(words, address_of(8 * (j + lane / 16) + lane % 8, lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 4; ++i) add_two(sums.of + 4 * j + 2 * i, words[i]);
  }
  if constexpr (Middle::kShare / 8 % 2 == 1) {
    u32 words[2];
    load_block(words, address_of(Middle::kShare - 8 + lane % 8, lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 2; ++i) add_two(sums.of + 4 * (Middle::kShare / 8 - 1) + 2 * i, words[i]);
  }
}

// The warpgroup's pixels of the tile, for 64 filters, to shared memory, pixel by pixel.
__device__ __forceinline__ void stage_out(SumsOf<Middle::kShare>& sums, u32 stage, int from, float low_bias, float high_bias) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < Middle::kShare / 2; ++j) sums.of[j] = activate_pair(sums.of[j] + (j % 4 < 2 ? low_bias : high_bias));
  const auto address_of = [&](int q, int half) { return stage + (from + q) * kStagePitch + (2 * warp + half) * 16; };
#pragma unroll
  for (int j = 0; j + 1 < Middle::kShare / 8; j += 2) {
    const float* s = sums.of + 4 * j;
    store_blocks(address_of(8 * (j + lane / 16) + lane % 8, lane / 8 % 2), Element::narrow_two(s[0], s[1]),
                 Element::narrow_two(s[2], s[3]), Element::narrow_two(s[4], s[5]), Element::narrow_two(s[6], s[7]));
  }
  if constexpr (Middle::kShare / 8 % 2 == 1) {
    const float* s = sums.of + 4 * (Middle::kShare / 8 - 1);
    store_block(address_of(Middle::kShare - 8 + lane % 8, lane / 8 % 2), Element::narrow_two(s[0], s[1]), Element::narrow_two(s[2], s[3]));
  }
}

// Staged pixels to the output, 8 filters per access.
template <int kThreads>
__device__ __forceinline__ void store_out(Element::Bits* out, u32 stage, const TilePlace& at, int block) {
#pragma unroll 4
  for (int i = threadIdx.x % kThreads; i < kTileRows * kTileColumns * 8; i += kThreads) {
    const int pixel = i / 8, row = pixel / kTileColumns, column = pixel % kTileColumns;
    if (at.row + row < kOutHeight && at.column + column < kOutWidth) {
      const uint4 eight = load_shared_vector(stage + (row * Middle::kPhaseColumns + column) * kStagePitch + 16 * (i % 8));
      const long long to = (static_cast<long long>(at.image) * kOutHeight + at.row + row) * kOutWidth + at.column + column;
      store_global<kNoHint>(reinterpret_cast<uint4*>(out + to * kFilters + 64 * block + 8 * (i % 8)), eight);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kPairThreads, 1) tuner_conv_pair(const __grid_constant__ ConvPairArgs args) {
  extern __shared__ __align__(128) unsigned char shared[];
  launch_dependents();
  const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int team = group / kTeam, member = group % kTeam, thread = threadIdx.x % kTeamThreads;
  const u32 first = shared_address(shared), second = first + kFilterBytes0;
  const u32 patch = second + kFilterBytes1 + team * kTileBytes, middle = patch + kPatchBytes;
  const u32 stages = middle + kMiddleBytes + (kSplitsFilters ? member * kNumStages * kStageBytes : 0);
  const int from1 = member * Patch::kShare, from2 = kSplitsFilters ? 0 : member * Middle::kShare;
  copy_filters<kBetween, Patch::kKernel * Patch::kKernel * kChannels, kPitchA1>(first, args.first);
  copy_filters<kFilters, Middle::kKernel * Middle::kKernel * kBetween, kPitchA2>(second, args.second);
  cp_async_commit();
  const int filter = 16 * warp + lane / 4;
  float low1[kBetween / 64], high1[kBetween / 64], low2[kOwnBlocks], high2[kOwnBlocks];
#pragma unroll
  for (int i = 0; i < kBetween / 64; ++i) {
    low1[i] = bias_of(args.first_bias, 64 * i + filter), high1[i] = bias_of(args.first_bias, 64 * i + filter + 8);
  }
#pragma unroll
  for (int i = 0; i < kOwnBlocks; ++i) {
    const int at = 64 * (kSplitsFilters ? i * kTeam + member : i) + filter;
    low2[i] = bias_of(args.second_bias, at), high2[i] = bias_of(args.second_bias, at + 8);
  }
  wait_for_prerequisites();

  int tile = blockIdx.x + team * gridDim.x;
  if (tile < args.num_tiles) copy_patch(patch, args.images, tile_place(tile), thread);
  cp_async_commit();
  cp_async_wait<0>();
  fence_proxy_async_shared();
  __syncthreads();
#pragma unroll 1
  for (; tile < args.num_tiles; tile += kNumTeams * gridDim.x) {
    const TilePlace at = tile_place(tile);
    if constexpr (kHasAdded) {
#pragma unroll
      for (int i = 0; i < kOwnBlocks; ++i) {
        copy_added<kSplitsFilters ? 128 : kTeamThreads>(stages + i * kStageBytes, added_of(args), at,
                                                        kSplitsFilters ? i * kTeam + member : i);
      }
      cp_async_commit();
    }
#pragma unroll
    for (int block = 0; block < kBetween / 64; ++block) {
      SumsOf<Patch::kShare> sums;
      multiply_all<Patch, kChunks0>(sums, first + 1024 * block, kPitchA1, patch + 16 * from1);
      if (block + 1 == kBetween / 64) {
        sync_team<kTeamThreads>(team);  // all have read the patch
        const int next = tile + kNumTeams * gridDim.x;
        if (next < args.num_tiles) copy_patch(patch, args.images, tile_place(next), thread);
        cp_async_commit();
      }
      store_middle(sums, middle, at, from1, block, low1[block], high1[block]);
    }
    fence_proxy_async_shared();
    if constexpr (kHasAdded) cp_async_wait<1>();  // not for the next patch
    sync_team<kTeamThreads>(team);
#pragma unroll
    for (int i = 0; i < kOwnBlocks; ++i) {
      const u32 stage = stages + i % kNumStages * kStageBytes;
      const int block = kSplitsFilters ? i * kTeam + member : i;
      SumsOf<Middle::kShare> sums;
      multiply_all<Middle, kChunks1>(sums, second + 1024 * block, kPitchA2, middle + 16 * from2);
      if constexpr (kHasAdded) add_staged(sums, stage, from2);
      stage_out(sums, stage, from2, low2[i], high2[i]);
      sync_team<kTeamThreads>(team);
      store_out<kSplitsFilters ? 128 : kTeamThreads>(args.out, stage, at, block);
      if (i + 1 < kOwnBlocks && kNumStages == 1) sync_team<kTeamThreads>(team);
    }
    cp_async_wait<0>();
    fence_proxy_async_shared();
    sync_team<kTeamThreads>(team);
  }
}
