// Row scale, bias, activation, gate, residual, rounding and the store of a warpgroup's accumulators.
//
// Layout of a 64 x n block: warp w of the warpgroup holds rows 16 w to 16 w + 15. In each group of 8 columns, lane l
// holds columns 2 (l % 4) and the next of rows l / 4 and l / 4 + 8. If the op is gated, the groups of the up projection
// follow those of the gate. Four lanes that share a row swap words among four groups, so that each stores 16 bytes of
// one group, and a warp writes whole sectors. n is a multiple of 8, so a group is inside or outside as a whole.
#pragma once
#include "finish.cuh"
#include "mailbox.cuh"
#include "mainloop_wgmma.cuh"

// Transposes 4 x 4 words among four lanes: words[i] of lane q becomes words[q] of lane i.
__device__ __forceinline__ void transpose_four(u32 (&words)[4], int q) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(0xFFFFFFFFu, q & 1 ? words[i] : words[i + 1], 1);
    (q & 1 ? words[i] : words[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 got = __shfl_xor_sync(0xFFFFFFFFu, q & 2 ? words[i] : words[i + 2], 2);
    (q & 2 ? words[i] : words[i + 2]) = got;
  }
}

// What a thread needs for a row of the tile.
struct TileRow {
  long long first;  // element of C
  int number;
  float scale;
  bool is_inside;
};

template <int kOp>
__device__ __forceinline__ TileRow tile_row(const OpArgs& op, const Task& task, const RowNorm& norm, int row_in_tile) {
  constexpr OpConfig kConfig = kOps[kOp];
  const int row = task.tile_m * kConfig.tile_m + row_in_tile;
  const bool is_inside = row_in_tile < kConfig.tile_m && row < op.m;
  float scale = 1.0f;
  if constexpr (RowScale<kOp>::is_there()) scale = RowScale<kOp>::of(op, row, is_inside);
  if constexpr (kChainOps[kOp].norm) scale = is_inside ? load_shared_float(norm.factors + 4 * row_in_tile) : 0.0f;
  return {static_cast<long long>(row) * op.n, row, scale, is_inside};
}

// Words of the residual that a thread has in flight at a time, limited by the registers that its sums leave free: with
// three math warpgroups there are none. A load after the previous store would be a separate round trip.
template <int kOp>
constexpr int kResidualsInFlight = kNumMathGroups == 3                ? 1
                                   : WgmmaTile<kOp>::kNumSums <= 64 ? 16
                                   : WgmmaTile<kOp>::kNumSums <= 96 ? 8
                                                                    : 1;

// Maximum number of groups of 8 columns (with swapped operands, of 8 rows) of a tile that a CTA finishes.
template <int kOp>
constexpr int kMostGroups = ((kSwapAb ? kOps[kOp].tile_m : kOps[kOp].tile_n) / 8 + kClusterK - 1) / kClusterK + (kClusterK > 1);

// A thread's words of a tile's residual. If it is ready early and there are few words, they are loaded before the
// products. Otherwise each load is a round trip after the products, before anything can be stored.
//
// Memory order. The inputs' warp has acquired a post of what the task reads as A, or waited for the launches before. It
// then arrives at the stage's barrier, and the math warps wait for that barrier before they load. The inputs of A's
// producer were acquired before that post was released, and release and acquire are cumulative.
template <int kOp>
struct EarlyResidual {
  static constexpr int kPerGroup = WgmmaTile<kOp>::kBlocks * (kSwapAb && kOps[kOp].gated ? 1 : 2);
  static constexpr int kMost = kPerGroup * kMostGroups<kOp>;
  static constexpr bool kIsThere = Residual<kOp>::is_there() && kChainOps[kOp].early_residual && kNumMathGroups == 1 &&
                                   !kTmaEpilogue && WgmmaTile<kOp>::kNumSums <= 64 && kMost <= 20 &&
                                   !(scatters_sums() && kOps[kOp].num_parts > 1);

  u32 words[kIsThere ? kMost : 1];
};

// A thread's words of a row's residual, for up to `count` groups of columns, starting at `column`.
template <int kOp, int kRoom>
__device__ __forceinline__ void load_residuals(u32 (&words)[kRoom], int count, const OpArgs& op, const TileRow& row,
                                               int column) {
  if constexpr (Residual<kOp>::is_there() && kRoom > 1) {
#pragma unroll
    for (int i = 0; i < kRoom; ++i) {
      words[i] = 0;
      if (i < count && row.is_inside && column + i * 8 < op.n)
        words[i] = Residual<kOp>::word(Residual<kOp>::begin(op) + row.first + column + i * 8);
    }
  }
}

// Also gets the finished elements of an op's tiles that these functions store: a struct of a part of its epilogue.
template <int kOp, int kFirst, int kEnd>
struct PartWatch;

// The op's `PartWatch`, if it has one.
template <int kOp, int kFirst, int kEnd, bool kIsThere = part_watches(kOp)>
struct Watch {
  // Two elements of group `group` of a row; with swapped operands, of a fragment of a block.
  template <class Place>
  __device__ __forceinline__ void keep(const OpArgs&, const Place&, int, int, const float (&)[2]) {}
  // Called once a row is complete; with swapped operands, a tile, by all threads that hold part of it.
  template <class Place>
  __device__ __forceinline__ void leave(const OpArgs&, const Task&, const Place&) const {}
};
template <int kOp, int kFirst, int kEnd>
struct Watch<kOp, kFirst, kEnd, true> : PartWatch<kOp, kFirst, kEnd> {};

// Two adjacent elements of a row, finished and rounded, from the sums of group `group`; `watch` also gets them. If loads
// are batched, `word` is their residual; otherwise it is loaded here.
template <int kOp, class Watching = Watch<kOp, 0, 0, false>>
__device__ __forceinline__ u32 finish_two(const float* sums, const OpArgs& op, const TileRow& row, int column, u32 word,
                                          Watching&& watch = {}, int group = 0) {
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kUp = kConfig.tile_n / 2;  // distance from a gate's sum to its up projection's
  float bias[2][2] = {}, residual[2] = {};
  if constexpr (Bias<kOp>::is_there()) Bias<kOp>::two(bias[0], op, column, 0);
  if constexpr (Bias<kOp>::is_there() && kConfig.gated) Bias<kOp>::two(bias[1], op, column, 1);
  if constexpr (Residual<kOp>::is_there() && kResidualsInFlight<kOp> == 1 && !EarlyResidual<kOp>::kIsThere) {
    if (row.is_inside) Residual<kOp>::two(residual, op, row.first, column);
  } else if constexpr (Residual<kOp>::is_there()) {
    residual[0] = Residual<kOp>::widen(word), residual[1] = Residual<kOp>::widen(word >> 16);
  }
  float out[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float* up_sum = sums + kUp + c;
    const auto up = [=] { return *up_sum; };
    float sum = sums[c];
    if constexpr (Residual<kOp>::is_of_sums()) sum = sums[c] + residual[c];
    out[c] = finish_output<kOp>(sum, up, row.scale, bias[0][c], bias[1][c], op, row.number, column + c);
    if constexpr (Residual<kOp>::is_there() && !Residual<kOp>::is_of_sums()) out[c] = Residual<kOp>::apply(out[c], residual[c]);
    out[c] = finish_result<kOp>(out[c], op, row.number, column + c);
  }
  watch.keep(op, row, group, column, out);
  return Output<kOp>::narrow_two(out[0], out[1]);
}

// Sums of squares of a thread's rows of a tile, two for each block; unused if the op writes no squares.
template <int kOp>
struct TileSquares {
  float of_row[WgmmaTile<kOp>::kBlocks][2] = {};

  __device__ __forceinline__ void add(int block, int half, u32 two) {
    if constexpr (kChainOps[kOp].squares) of_row[block][half] += squares_of<Output<kOp>>(two);
  }
};

// Loads the residual of groups of columns kFirst to kEnd - 1. Called by all threads that multiply the tile, once its
// first inputs have arrived.
template <int kOp, int kFirst = 0, int kEnd = kOps[kOp].tile_n / 8>
__device__ __forceinline__ void load_early_residual(EarlyResidual<kOp>& early, const OpArgs& op, const Task& task) {
  using Tile = WgmmaTile<kOp>;
  static_assert(kEnd - kFirst <= kMostGroups<kOp>, "the groups fit in the array of loaded words");
  const int thread = team_thread(), lane = thread % 32;
#pragma unroll
  for (int block = 0; block < Tile::kBlocks; ++block) {
    const int warp_row = (thread / 128 * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_in_tile = warp_row + lane / 4 + half * 8, row = task.tile_m * kOps[kOp].tile_m + row_in_tile;
      const bool is_inside = row_in_tile < kOps[kOp].tile_m && row < op.m;
#pragma unroll
      for (int j = kFirst; j < kEnd; ++j) {
        const int column = task.tile_n * kOps[kOp].tile_n + j * 8 + lane % 4 * 2;
        u32& word = early.words[(block * 2 + half) * (kEnd - kFirst) + j - kFirst];
        word = 0;
        if (is_inside && column < op.n)
          word = Residual<kOp>::word(Residual<kOp>::begin(op) + static_cast<long long>(row) * op.n + column);
      }
    }
  }
}

// Finishes and stores an op's tiles in place of `store_wgmma_tile` or `store_transposed_tile`: a struct of a part of its
// epilogue, next to the part.
template <int kOp, int kFirst, int kEnd>
struct PartStore;

// Finishes and stores the tile's groups of columns kFirst to kEnd - 1; `squares` are the sums of this CTA's preceding
// columns.
template <int kOp, int kFirst = 0, int kEnd = kOps[kOp].tile_n / 8>
__device__ __forceinline__ void store_wgmma_tile(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op,
                                                 const Task& task, const RowNorm& norm,
                                                 const EarlyResidual<kOp>& early = {}, TileSquares<kOp> squares = {}) {
  if constexpr (part_stores(kOp)) return PartStore<kOp, kFirst, kEnd>::store(acc, op, task, norm);
  using Tile = WgmmaTile<kOp>;
  constexpr bool kIsEarly = EarlyResidual<kOp>::kIsThere;
  constexpr int kInFours = kFirst + (kEnd - kFirst) / 4 * 4, kBatch = kResidualsInFlight<kOp>;
  const int thread = team_thread(), group = thread / 128, lane = thread % 32, q = lane % 4;
  const int column0 = task.tile_n * kOps[kOp].tile_n;
  Watch<kOp, kFirst, kEnd> watch;
#pragma unroll
  for (int block = 0; block < Tile::kBlocks; ++block) {
    const int warp_row = (group * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
    if (warp_row >= Tile::kSharedRows) continue;  // rows of another tile
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_in_tile = warp_row + lane / 4 + half * 8;
      const TileRow row = tile_row<kOp>(op, task, norm, row_in_tile);
      const float* sums = acc + block * Tile::kBlockSums + half * 2;
      [[maybe_unused]] u32 residuals[kBatch];
      [[maybe_unused]] const int words_before = (block * 2 + half) * (kEnd - kFirst) - kFirst;
#pragma unroll
      for (int j = kFirst; j < kInFours; j += 4) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = column0 + (j + i) * 8 + q * 2, loaded = (j + i - kFirst) % kBatch;
          if (!kIsEarly && loaded == 0) load_residuals<kOp>(residuals, kEnd - j - i, op, row, column);
          const u32 residual = kIsEarly ? early.words[words_before + j + i] : residuals[loaded];
          words[i] = finish_two<kOp>(sums + (j + i) * 4, op, row, column, residual, watch, j + i);
          squares.add(block, half, words[i]);
        }
        transpose_four(words, q);
        const int column = column0 + (j + q) * 8;
        if (row.is_inside && column < op.n)
          store_finished<kOp>(op, norm, row.first + column, make_uint4(words[0], words[1], words[2], words[3]));
      }
#pragma unroll
      for (int j = kInFours; j < kEnd; ++j) {
        const int column = column0 + j * 8 + q * 2, loaded = (j - kFirst) % kBatch;
        if (!kIsEarly && loaded == 0) load_residuals<kOp>(residuals, kEnd - j, op, row, column);
        const u32 residual = kIsEarly ? early.words[words_before + j] : residuals[loaded];
        const u32 two = finish_two<kOp>(sums + j * 4, op, row, column, residual, watch, j);
        squares.add(block, half, two);
        if (row.is_inside && column < op.n) store_finished<kOp>(op, norm, row.first + column, two);
      }
      watch.leave(op, task, row);
      if constexpr (kChainOps[kOp].squares) {
        const int row_of_matrix = task.tile_m * kOps[kOp].tile_m + row_in_tile;
        leave_squares(norm, row_of_matrix, row.is_inside, squares.of_row[block][half]);
      }
    }
  }
}
