// Weights of fewer bits than the inputs, which the math warps convert in registers: operand A of swapped operands comes from
// there. So converted weights are in no memory at all.
//
// Layout. A stage holds codes as they lie in global memory, in lines of 128 bytes under the swizzle, all rows of a line one
// after the other. Codes are ordered so that ldmatrix leaves each lane the words that it converts to its fragment: four 8 x 8
// matrices of two bytes bring a warp its 16 rows of 32 bytes, a *span*. Behind the codes lie a stage's factors, group by
// group, as many as it has rows of weights, in the order of W.
//
// Registers. wgmma reads them until it is done, so there are two sets of fragments, and where they are few of groups' sums. A span is loaded and
// converted while the tensor cores have the span before. Behind the issue of a span's products those of the span before are
// done; then its stage is released where it was the last one there.
//
// Groups. A group of 64 or 128 codes of a row shares a factor. Its products are sums of their own, which the thread multiplies
// with the factors of its two rows and adds to its own sums in fp32: the weights themselves are exact. No group's sums are
// left to the next stage: the compiler would not see that they are done, and let no two products overlap.
#pragma once
#include "mainloop_wgmma.cuh"

template <int kOp>
struct Converted {
  using Tile = WgmmaTile<kOp>;
  static constexpr int kBlocks = Tile::kBlocks, kNumSums = Tile::kNumSums;
  static constexpr int kSpan = 256 / Weights::kBits, kSlices = kSpan / 16;  // of k
  static constexpr int kSpans = Tile::kTileK / kSpan, kLineSpans = kLineBytes / 32;
  static constexpr bool kHasGroups = Weights::kGroup > 0;
  // Sets of groups' sums: with one, the next group begins when this one is added.
  static constexpr int kSets = kNumSums <= 32 ? 2 : 1;
  static constexpr int kGroupSpans = kHasGroups ? Weights::kGroup / kSpan : kSpans, kGroups = kSpans / kGroupSpans;
  static_assert(kSwapAb, "weights are operand A");
  static_assert(kSpans % 2 == 0 && kGroups * kGroupSpans == kSpans && (!kHasGroups || kGroups % 2 == 0),
                "sets take turns across stages");

  using Fragments = u32[kBlocks][kSlices][4];
  using Factors = float[kBlocks][2];
  using Zeros = u32[kBlocks][2];

  // Where a lane's rows of a warpgroup's first block begin in the ring's first slot, and its place in a line.
  struct Rows {
    u32 begin, place;

    __device__ __forceinline__ explicit Rows(u32 ring) {
      const int lane = thread_number() % 32, warp = team_thread() / 32 % 4;
      begin = ring + (team_group() * kBlocks * kBlockRows + warp * 16 + lane % 16) * kLineBytes;
      place = (lane / 16 ^ lane % 8) * 16;
    }
    __device__ __forceinline__ u32 of(int slot, int block, int span) const {
      const u32 rows = begin + slot * kWeightStageBytes;
      return rows + (span / kLineSpans * Tile::kSharedRows + block * kBlockRows) * kLineBytes + (place ^ span % kLineSpans * 32);
    }
  };

  __device__ static __forceinline__ void load(Fragments& fragments, const Rows& rows, int slot, int span,
                                              [[maybe_unused]] const Zeros& zeros) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      u32 words[4];  // 8 rows and the 8 below of 16 bytes of k, and of the next 16
      ldmatrix_x4(words, rows.of(slot, block, span));
      u32 pairs[4][16 / Weights::kBits];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        if constexpr (Weights::kHasZeros) {
          Weights::convert(words[word], pairs[word], zeros[block][word % 2]);
        } else {
          Weights::convert(words[word], pairs[word]);
        }
      }
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const int word = slice / (kSlices / 2) * 2, pair = slice % (kSlices / 2) * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) fragments[block][slice][i] = pairs[word + i % 2][pair + i / 2];
      }
    }
  }

  // Of a group of a stage the bits of its `number`-th list that are of the thread's rows: factors, then zero points.
  template <class Take>
  __device__ static __forceinline__ void read_list(u32 stage, int group, int number, const Take& take) {
    constexpr int kRows = Tile::kSharedRows, kLists = 1 + Weights::kHasZeros;
    const u32 codes = stage + kRows * kStoredK<kOp> * kElementBytes;
    const u32 begin = codes + (group * kLists + number) * kRows * kElementBytes;
    const int first = team_group() * kBlocks * kBlockRows + team_thread() / 32 % 4 * 16 + thread_number() % 32 / 4;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = Tile::weight_row(first + block * kBlockRows + 8 * half);
        take(block, half, load_shared_element(begin + min(place, kRows - 1) * kElementBytes));
      }
    }
  }
  __device__ static __forceinline__ void load_factors(Factors& factors, u32 stage, int group) {
    read_list(stage, group, 0, [&](int block, int half, u16 bits) { factors[block][half] = Element::widen(bits); });
  }
  __device__ static __forceinline__ void load_zeros(Zeros& zeros, u32 stage, int group) {
    read_list(stage, group, 1, [&](int block, int half, u16 bits) { zeros[block][half] = bits * 0x10001u; });
  }

  __device__ static __forceinline__ void add(float (&acc)[kMaxWgmmaAccumulators], const float (&sums)[kNumSums],
                                             const Factors& factors) {
#pragma unroll
    for (int i = 0; i < kNumSums; ++i) acc[i] = fmaf(factors[i / Tile::kBlockSums][i / 2 % 2], sums[i], acc[i]);
  }

  // As `WgmmaTile::multiply`.
  template <class Issued>
  __device__ static void multiply(float (&acc)[kMaxWgmmaAccumulators], int num_steps, const Stages& stages,
                                  StagePlaces& places, const Issued& issued) {
    Tile::fill(acc, 0.0f);
    const int lane = thread_number() % 32;
    const typename Tile::Operands first(stages);
    const Rows rows(stages.weights.data);
    Fragments fragments[2];
    float sums[kSets][kHasGroups ? kNumSums : 1];
    Factors factors[kSets];
    Zeros zeros;
    bool is_first = true;
#pragma unroll 1
    for (int left = num_steps; left > 0; --left) {
      stages.wait_filled(places);
      const int slot = places.weight.slot();
      const u32 inputs = first.at(places).inputs;
#pragma unroll
      for (int span = 0; span < kSpans; ++span) {
        const int group = span / kGroupSpans;
        const bool begins = kHasGroups && span % kGroupSpans == 0;
        if constexpr (Weights::kHasZeros) {
          if (begins) load_zeros(zeros, stages.weights.data + slot * kWeightStageBytes, group);
        }
        load(fragments[span % 2], rows, slot, span, zeros);
        wgmma_fence();
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          const int k = span * kSpan + slice * 16;
          const int units = k / kLineColumns * Tile::kColumns * (kLineBytes / 16) + k % kLineColumns / 8;
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
            float* const own = kHasGroups ? sums[group % kSets] : acc;
            WgmmaOfRegisters<Tile::kColumns>::multiply(own + block * Tile::kBlockSums, fragments[span % 2][block][slice],
                                                       operand_descriptor(inputs + units), !(begins && slice == 0));
          }
        }
        wgmma_commit();
        if constexpr (kHasGroups) {
          const bool ends = span % kGroupSpans == kGroupSpans - 1;
          if (begins) load_factors(factors[group % kSets], stages.weights.data + slot * kWeightStageBytes, group);
          if (ends && (kSets == 1 || span == kSpans - 1)) {
            wgmma_wait<0>();
          } else {
            wgmma_wait<1>();
          }
          if (kSets > 1 && begins && group > 0) add(acc, sums[(group + 1) % kSets], factors[(group + 1) % kSets]);
          if (ends && (kSets == 1 || span == kSpans - 1)) add(acc, sums[group % kSets], factors[group % kSets]);
        } else {
          wgmma_wait<1>();
        }
        if (span == 0 && !is_first) stages.release_before(places, lane);
      }
      is_first = false;
      places.advance();
    }
    issued();
    wgmma_wait<0>();
    if (!is_first) stages.release_before(places, lane);
  }
};
