// Weights with fewer bits than the inputs, which the math warps convert in registers: with swapped operands, operand A
// can be in registers. So converted weights are never stored in memory.
//
// Layout. A stage holds codes in the layout of global memory, in lines of 128 bytes under the swizzle, with all rows of
// a line in sequence. Codes are ordered so that ldmatrix gives each lane the words that it converts to its fragment:
// four 8 x 8 matrices of two bytes load a warp's 16 rows of 32 bytes, a *span*. The codes are followed by the stage's
// factors, group by group, one for each row of weights, in the order of W.
//
// Few rows. For up to kMostSync rows of inputs of 16 bits, each warp multiplies separately, by mma.sync: an instruction
// occupies the tensor cores for less time than the smallest wgmma with as few rows in operand B, and no warp waits for
// the other three. The fragments of the inputs are loaded by ldmatrix. A stage is released when its last span is in
// registers.
//
// Registers. wgmma reads its operand registers until it is done, so there are two sets of fragments and, if groups'
// sums are few, also two sets of those. A span is loaded and converted while the tensor cores process the previous one;
// its words are loaded before the products of the previous span are issued, so that no conversion begins with a wait.
// After a span's products are issued, the kernel waits for those of the previous span, and then releases its stage if
// that was the stage's last span.
//
// Groups. A group of codes of a row shares a factor. A power of two multiplies the codes as they are converted.
// Otherwise a group's products have separate sums, which the thread multiplies by the factors of its two rows and adds
// to its own sums in fp32, so that the weights themselves are exact. With wgmma, stages are multiplied in pairs if there
// are two sets of sums: the sums of the first stage's last group are left for the second one, but none are left for the
// next iteration: the compiler would not recognise that they are complete, and would serialise the products.
#pragma once
#include "mainloop_wgmma.cuh"

// The maximum number of rows of a tile's inputs for which mma.sync is used.
constexpr int kMostSync = 16;

template <int kOp>
struct Converted {
  using Tile = WgmmaTile<kOp>;
  static constexpr int kBlocks = Tile::kBlocks, kNumSums = Tile::kNumSums, kColumns = Tile::kColumns;
  static constexpr bool kBySync = kColumns <= kMostSync && kElementBytes == 2;
  // In elements of k: what one instruction multiplies, 16 bytes of inputs, and a span. Enumerators add no symbols.
  enum : int { kDepth = 32 / kElementBytes, kUnitColumns = 16 / kElementBytes };
  static constexpr int kSpan = 256 / Weights::kBits, kSlices = kSpan / kDepth;
  static constexpr int kSpans = Tile::kTileK / kSpan, kLineSpans = kLineBytes / 32, kBundleSpans = kBundle / kSpan;
  static constexpr bool kHasGroups = Weights::kGroup > 0, kScalesSums = kHasGroups && !Weights::kHasPowers;
  // Columns of a group, and the number of groups in a bundle and in a span; without groups, a bundle is one group.
  static constexpr int kGroup = kHasGroups ? Weights::kGroup : kBundle, kGroups = kBundle / kGroup;
  static constexpr int kSpanGroups = kScalesSums && kSpan > kGroup ? kSpan / kGroup : 1;
  // The products that are issued to the tensor cores together: those of a span that belong to one group.
  static constexpr int kUnitSlices = kSlices / kSpanGroups, kUnits = kSpans * kSpanGroups;
  static constexpr int kGroupUnits = kScalesSums ? kGroup / kDepth / kUnitSlices : kUnits;
  // Number of sets of groups' sums: with one, the next group begins after the previous one was added.
  static constexpr int kSets = kNumSums <= 32 ? 2 : 1;
  // With mma.sync, the number of copies of each sum to which products are added in turn, so that few products wait for
  // the previous one; sums of groups already alternate.
  static constexpr int kInTurn = kScalesSums || kNumSums > 8 ? 1 : 16 / kNumSums;
  // Stages of an iteration with wgmma, after which all groups' sums are waited for.
  static constexpr int kTogether = kScalesSums && kSets > 1 ? 2 : 1;
  static_assert(kSwapAb, "weights are operand A");
  static_assert(kSpans % 2 == 0 && (!kHasGroups || Tile::kTileK % kBundle == 0),
                "two fragment buffers alternate, and a stage has whole bundles");

  using Fragments = u32[kSlices][4];  // fragments of a span of a block
  using Inputs = u32[kSlices][kBySync ? kColumns / 8 : 1][2];
  using Sums = float[kScalesSums ? kNumSums : 1];
  // The data of a thread's rows, for the groups of a bundle.
  struct Bundle {
    float factors[kGroups][kBlocks][2];
    Weights::Beside beside[kGroups][kBlocks][2];
  };

  // The address of a lane's rows of a warpgroup's first block in the ring's first slot, and the lane's offset in a
  // line.
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

  // The same for the inputs' rows: a lane has one of eight rows, and 8 of 32 columns.
  struct InputRows {
    u32 begin, place;

    __device__ __forceinline__ explicit InputRows(u32 ring) {
      const int lane = thread_number() % 32;
      begin = ring + lane % 8 * kLineBytes;
      place = (lane / 8 ^ lane % 8) * 16;
    }
    __device__ __forceinline__ u32 of(int slot, int eight, int k) const {
      const u32 rows = begin + slot * kInputStageBytes;
      return rows + (k / kLineColumns * kColumns + eight * 8) * kLineBytes + (place ^ k % kLineColumns / 8 * 16);
    }
  };

  using Words = u32[4];  // 8 rows and the next 8, for 16 bytes of k and for the next 16

  __device__ static __forceinline__ void convert(Fragments& fragments, const Words& words, int span, int block,
                                                 const Bundle& bundle) {
    u32 pairs[4][8 * kElementBytes / Weights::kBits];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int group = (span * kSpan + word / 2 * (kSpan / 2)) % kBundle / kGroup;
      Weights::convert(words[word], pairs[word], bundle.beside[group][block][word % 2]);
    }
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const int word = slice / (kSlices / 2) * 2, pair = slice % (kSlices / 2) * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) fragments[slice][i] = pairs[word + i % 2][pair + i / 2];
    }
  }

  __device__ static __forceinline__ void load_inputs(Inputs& inputs, const InputRows& rows, int slot, int span) {
#pragma unroll
    for (int slice = 0; slice < kSlices; slice += 2) {
#pragma unroll
      for (int eight = 0; eight < kColumns / 8; ++eight) {
        u32 words[4];
        ldmatrix_x4(words, rows.of(slot, eight, span * kSpan + slice * 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) inputs[slice + i / 2][eight][i % 2] = words[i];
      }
    }
  }

  // The position of the thread's rows in a list.
  struct ListPlaces {
    u32 of[kBlocks][2];

    __device__ __forceinline__ ListPlaces() {
      const u32 first = team_group() * kBlocks * kBlockRows + team_thread() / 32u % 4 * 16 + thread_number() % 32u / 4;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          of[block][half] = min(Tile::weight_row(first + block * kBlockRows + 8 * half), Tile::kSharedRows - 1u) * kListBytes;
      }
    }
  };

  // What a lane reads of each stage, with wgmma.
  struct Lanes {
    typename Tile::Operands first;
    Rows rows;
    ListPlaces lists;

    __device__ __forceinline__ explicit Lanes(const Stages& stages) : first(stages), rows(stages.weights.data) {}
  };

  // Loads the thread's rows of the lists, for a bundle of a stage.
  __device__ static __forceinline__ void load_bundle(Bundle& bundle, const ListPlaces& places, u32 stage, int number) {
    constexpr int kRows = Tile::kSharedRows, kLists = 1 + Weights::kHasZeros;
    const u32 lists = stage + kRows * kStoredK<kOp> * kElementBytes + number * kLists * kRows * kListBytes;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 place = places.of[block][half];
        const u64 factors = load_shared_bytes<kListBytes>(lists + place);
        const u64 zeros = Weights::kHasZeros ? load_shared_bytes<kListBytes>(lists + kRows * kListBytes + place) : 0;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const u32 bits = factors >> 8 * Weights::kFactorBytes * group & ((u64{1} << 8 * Weights::kFactorBytes) - 1);
          if constexpr (kScalesSums) bundle.factors[group][block][half] = factor_of(bits);
          if constexpr (Weights::kHasPowers) bundle.beside[group][block][half] = Weights::beside(bits);
          if constexpr (Weights::kHasZeros) bundle.beside[group][block][half] = Weights::beside(zeros >> 16 * group & 0xFFFF);
        }
      }
    }
  }

  // Clears a block's sums.
  __device__ static __forceinline__ void clear(float* sums) {
#pragma unroll
    for (int i = 0; i < Tile::kBlockSums; ++i) sums[i] = 0.0f;
  }
  __device__ static __forceinline__ void add(float (&acc)[kMaxWgmmaAccumulators], const Sums& sums,
                                             const float (&factors)[kBlocks][2], int block) {
    const int first = block * Tile::kBlockSums;
#pragma unroll
    for (int i = 0; i < Tile::kBlockSums; ++i) acc[first + i] = fmaf(factors[block][i / 2 % 2], sums[first + i], acc[first + i]);
  }
  __device__ static __forceinline__ void add(float (&acc)[kMaxWgmmaAccumulators], const Sums& sums,
                                             const float (&factors)[kBlocks][2]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) add(acc, sums, factors, block);
  }

  // Same as `WgmmaTile::multiply`.
  template <class Issued>
  __device__ static __forceinline__ void multiply(float (&acc)[kMaxWgmmaAccumulators], int num_steps, const Stages& stages,
                                                  StagePlaces& places, const Issued& issued) {
    Tile::fill(acc, 0.0f);
    if constexpr (kBySync) {
      multiply_by_sync(acc, num_steps, stages, places);
      issued();
    } else {
      multiply_by_wgmma(acc, num_steps, stages, places, issued);
    }
    if constexpr (kScalesSums) {
#pragma unroll
      for (int i = 0; i < kNumSums; ++i) acc[i] *= Weights::kSteps;
    }
  }

  template <class Kind = Element>
  __device__ static __forceinline__ void multiply_by_sync(float (&acc)[kMaxWgmmaAccumulators], int num_steps,
                                                          const Stages& stages, StagePlaces& places) {
    const int lane = thread_number() % 32;
    const Rows rows(stages.weights.data);
    const InputRows input_rows(stages.inputs.data);
    const ListPlaces list_places;
    Sums sums;
    Bundle bundle;
    float others[kInTurn][kNumSums];  // the first copies are acc
#pragma unroll
    for (int turn = 1; turn < kInTurn; ++turn) {
#pragma unroll
      for (int i = 0; i < kNumSums; ++i) others[turn][i] = 0.0f;
    }
#pragma unroll 1
    for (int left = num_steps; left > 0; --left) {
      stages.wait_filled(places);
      const int slot = places.weight.slot(), input_slot = places.input_slot();
#pragma unroll
      for (int span = 0; span < kSpans; ++span) {
        if constexpr (kHasGroups) {
          if (span % kBundleSpans == 0) {
            if constexpr (kGroups > 2) __syncwarp();  // the compiler gathers factors of no more bundles
            load_bundle(bundle, list_places, stages.weights.data + slot * kWeightStageBytes, span / kBundleSpans);
          }
        }
        Inputs inputs;
        load_inputs(inputs, input_rows, input_slot, span);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          Words words;
          Fragments fragments;
          ldmatrix_x4(words, rows.of(slot, block, span));
          convert(fragments, words, span, block, bundle);
#pragma unroll
          for (int slice = 0; slice < kSlices; ++slice) {
            const int k = span * kSpan + slice * 16;
            const int turn = k / 16 % kInTurn;
            float* const own = (kScalesSums ? sums : turn > 0 ? others[turn] : acc) + block * Tile::kBlockSums;
            if (kScalesSums && k % kGroup == 0) clear(own);
#pragma unroll
            for (int eight = 0; eight < kColumns / 8; ++eight)
              Kind::multiply(own + eight * 4, fragments[slice], inputs[slice][eight]);
            if (kScalesSums && (k + 16) % kGroup == 0) add(acc, sums, bundle.factors[k % kBundle / kGroup], block);
          }
        }
      }
      places.advance();
      stages.release_before(places, lane);
    }
#pragma unroll
    for (int turn = 1; turn < kInTurn; ++turn) {
#pragma unroll
      for (int i = 0; i < kNumSums; ++i) acc[i] += others[turn][i];
    }
  }

  template <class Issued>
  __device__ static __forceinline__ void multiply_by_wgmma(float (&acc)[kMaxWgmmaAccumulators], int num_steps,
                                                           const Stages& stages, StagePlaces& places, const Issued& issued) {
    const Lanes lanes(stages);
    Fragments fragments[2][kBlocks];
    const bool is_odd = kTogether > 1 && num_steps % kTogether != 0;
    if (is_odd) multiply_stages<1>(acc, fragments, stages, places, lanes, false);
#pragma unroll 1
    for (int left = num_steps; left >= kTogether; left -= kTogether)
      multiply_stages<kTogether>(acc, fragments, stages, places, lanes, is_odd || left < num_steps);
    issued();
    wgmma_wait<0>();
    if (num_steps > 0) stages.release_before(places, thread_number() % 32);
  }

  // Multiplies so many stages; if `is_behind` others, it releases the last of them.
  template <int kStages>
  __device__ static __forceinline__ void multiply_stages(float (&acc)[kMaxWgmmaAccumulators], Fragments (&fragments)[2][kBlocks],
                                                         const Stages& stages, StagePlaces& places, const Lanes& lanes,
                                                         bool is_behind) {
    constexpr int kAll = kStages * kUnits;
    Sums sums[kSets];
    Bundle bundles[kSets];
    Words words[kBlocks];
    int slot = 0;
    u32 inputs = 0;
#pragma unroll
    for (int unit = 0; unit < kAll; ++unit) {
      const int span = unit / kSpanGroups, own_span = span % kSpans, group = unit / kGroupUnits;
      const bool begins = kScalesSums && unit % kGroupUnits == 0, begins_stage = unit % kUnits == 0;
      if (begins_stage) {
        if (unit > 0) places.advance();
        stages.wait_filled(places);
        slot = places.weight.slot();
        inputs = uniform(lanes.first.at(places).inputs);
      }
      Bundle& bundle = bundles[span / kBundleSpans % kSets];
      if constexpr (kHasGroups) {
        if (unit % (kBundleSpans * kSpanGroups) == 0)
          load_bundle(bundle, lanes.lists, stages.weights.data + slot * kWeightStageBytes, own_span / kBundleSpans);
      }
      if (unit % kSpanGroups == 0) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          if (begins_stage) ldmatrix_x4(words[block], lanes.rows.of(slot, block, 0));
          convert(fragments[span % 2][block], words[block], own_span, block, bundle);
          if (own_span + 1 < kSpans) ldmatrix_x4(words[block], lanes.rows.of(slot, block, own_span + 1));
        }
      }
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kUnitSlices; ++i) {
        const int slice = unit % kSpanGroups * kUnitSlices + i, k = own_span * kSpan + slice * kDepth;
        const int units = k / kLineColumns * kColumns * (kLineBytes / 16) + k % kLineColumns / kUnitColumns;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          float* const own = kScalesSums ? sums[group % kSets] : acc;
          WgmmaOfRegisters<kColumns>::multiply(own + block * Tile::kBlockSums, fragments[span % 2][block][slice],
                                               operand_descriptor(inputs + units), !(begins && i == 0));
        }
      }
      wgmma_commit();
      if constexpr (kScalesSums) {
        const bool ends = unit % kGroupUnits == kGroupUnits - 1, waits = ends && (kSets == 1 || unit == kAll - 1);
        if (waits) {
          wgmma_wait<0>();
        } else {
          wgmma_wait<1>();
        }
        if (kSets > 1 && begins && group > 0) {
          const Bundle& before = bundles[(group - 1) / kGroups % kSets];
          add(acc, sums[(group - 1) % kSets], before.factors[(group - 1) % kGroups]);
        }
        if (waits) add(acc, sums[group % kSets], bundle.factors[group % kGroups]);
      } else {
        wgmma_wait<1>();
      }
      if (begins_stage && (unit > 0 || is_behind)) stages.release_before(places, thread_number() % 32);
    }
    places.advance();
  }
};
