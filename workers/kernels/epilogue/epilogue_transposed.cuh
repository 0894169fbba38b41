// The epilogue of swapped operands: accumulators hold the transposed tile, C^T, and are transposed when they are
// stored.
//
// Layout of a block, 64 rows of W by all rows of the tile: warp w of the warpgroup holds rows 16 w to 16 w + 15 of W,
// each of which is a column of the tile. In each group of 8 tile rows, lane l holds rows 2 (l % 4) and the next of
// columns l / 4 and l / 4 + 8. If the op is gated, the first 8 of these columns belong to the gate, and the other 8 are
// the same columns of the up projection. Finished and rounded, 8 columns x 8 rows are a fragment, which movmatrix
// transposes: lane l then holds columns 2 (l % 4) and the next of row l / 4. Four fragments are the 16 columns of two
// groups of rows, or the 8 columns of four groups if the op is gated. Four lanes swap words among them, so that each
// stores 16 bytes of one fragment.
#pragma once
#include "epilogue_wgmma.cuh"

// Lane l of a warp holds two elements of row l / 4 of an 8 x 8 matrix, then of its transpose.
__device__ __forceinline__ u32 transpose_fragment(u32 two) {
  u32 turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(two));
  return turned;
}

// What a thread needs for a column of the tile: the biases of the gate and of the up projection.
struct TileColumn {
  float bias[2];
};

template <int kOp>
__device__ __forceinline__ TileColumn tile_column(const OpArgs& op, int column) {
  constexpr OpConfig kConfig = kOps[kOp];
  TileColumn found = {};
  if constexpr (Bias<kOp>::is_there()) {
    if (column < op.n) {
      found.bias[0] = Bias<kOp>::one(op, column, 0);
      if constexpr (kConfig.gated) found.bias[1] = Bias<kOp>::one(op, column, 1);
    }
  }
  return found;
}

// The finished elements of a column in `row` and the next row, from their accumulators `sums`; `residual` holds their
// residuals, transposed like the sums.
template <int kOp>
__device__ __forceinline__ void finish_rows(float (&out)[2], const float* sums, const OpArgs& op, int row, int number,
                                            const TileColumn& column, const float (&scale)[2], u32 residual) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto up = [&] { return sums[2 + r]; };
    float sum = sums[r];
    if constexpr (Residual<kOp>::is_of_sums()) sum = sums[r] + Residual<kOp>::widen(residual >> 16 * r);
    out[r] = finish_output<kOp>(sum, up, scale[r], column.bias[0], column.bias[1], op, row + r, number);
    if constexpr (Residual<kOp>::is_there() && !Residual<kOp>::is_of_sums())
      out[r] = Residual<kOp>::apply(out[r], Residual<kOp>::widen(residual >> 16 * r));
    out[r] = finish_result<kOp>(out[r], op, row + r, number);
  }
}

// What one thread needs for the tile's columns that its warp holds.
template <int kOp>
struct WarpColumns {
  static constexpr OpConfig kConfig = kOps[kOp];
  // Fragments of each group of 8 rows.
  static constexpr int kFragments = kConfig.gated ? 1 : 2;

  int first;
  TileColumn own[kFragments];

  __device__ __forceinline__ WarpColumns(const OpArgs& op, int first_column, int lane) : first(first_column) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) own[i] = tile_column<kOp>(op, first + i * 8 + lane / 4);
  }

  // The position in C of a fragment of the block; fragments are numbered group by group.
  __device__ __forceinline__ int row(int tile_row0, int fragment) const { return tile_row0 + fragment / kFragments * 8; }
  __device__ __forceinline__ int column(int fragment) const { return first + fragment % kFragments * 8; }

  // The lane's word of the residual of a fragment.
  __device__ __forceinline__ u32 residual_word(const OpArgs& op, int tile_row0, int fragment, int lane) const {
    const long long own_row = row(tile_row0, fragment) + lane / 4;
    const int column0 = column(fragment);
    if (own_row >= op.m || column0 >= op.n) return 0;
    return Residual<kOp>::word(Residual<kOp>::begin(op) + own_row * op.n + column0 + lane % 4 * 2);
  }

  // The same for up to `count` fragments, starting at `first_fragment`.
  __device__ __forceinline__ void load_residuals(u32 (&words)[kResidualsInFlight<kOp>], int count, const OpArgs& op,
                                                 int tile_row0, int first_fragment, int lane) const {
    if constexpr (Residual<kOp>::is_there()) {
#pragma unroll
      for (int i = 0; i < kResidualsInFlight<kOp>; ++i)
        words[i] = i < count ? residual_word(op, tile_row0, first_fragment + i, lane) : 0;
    }
  }

  // The factors of the lane's two rows of a fragment, by a row scale or a norm.
  __device__ __forceinline__ void row_factors(float (&scale)[2], const OpArgs& op, const RowNorm& norm, int tile_row0,
                                              int fragment, int lane) const {
    const int row0 = row(tile_row0, fragment) + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scale[r] = RowScale<kOp>::of(op, row0 + r);
      if constexpr (kChainOps[kOp].norm) scale[r] = load_shared_float(norm.factors + 4 * (row0 - tile_row0 + r));
    }
  }

  // The lane's two finished elements of a fragment, from the block's sums and the lane's residual.
  __device__ __forceinline__ void finish_two(float (&out)[2], const float* sums, const OpArgs& op, const RowNorm& norm,
                                             int tile_row0, int fragment, int lane, u32 residual = 0) const {
    float scale[2];
    row_factors(scale, op, norm, tile_row0, fragment, lane);
    if constexpr (Residual<kOp>::is_there()) residual = transpose_fragment(residual);
    const float* two = sums + fragment / kFragments * 4 + fragment % kFragments * 2;
    const int row0 = row(tile_row0, fragment) + lane % 4 * 2, number = column(fragment) + lane / 4;
    finish_rows<kOp>(out, two, op, row0, number, own[fragment % kFragments], scale, residual);
  }
};

// The teams' barriers for exchanging sums of squares; their numbers follow all others (chain_wgmma.cuh).
__device__ __forceinline__ int squares_barrier() { return 12 + team_number(); }

// Sums of squares of a tile's rows. A warp holds some columns of all rows, so warps combine their sums in shared
// memory, where each has its own row: [warps][tile_m]. A lane adds to one row of each group of 8, and blocks are
// processed one after the other, so no other lane accesses the same element.
template <int kOp>
struct TransposedSquares {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kHolders = WgmmaTile<kOp>::kHolders, kFragments = WarpColumns<kOp>::kFragments;

  const RowNorm& norm;
  float partial = 0.0f;

  // The lane's word of a fragment, group by group; all lanes of a warp.
  __device__ __forceinline__ void add(int block, int fragment, u32 two, int lane) {
    if constexpr (kChainOps[kOp].squares) {
      partial += squares_of<Output<kOp>>(two);
      if (fragment % kFragments != kFragments - 1) return;
      const float sum = add_four_lanes(partial);
      const int row = fragment / kFragments * 8 + lane / 4;
      const u32 place = norm.scratch + 4 * (team_thread() / 32 * kConfig.tile_m + row);
      if (lane % 4 == 0) store_shared(place, block == 0 ? sum : load_shared_float(place) + sum);
      partial = 0.0f;
    }
  }

  // Adds up the sums of groups of rows kFirst to kEnd - 1, and stores them in the tile's slot. Called by all threads
  // that hold part of the tile.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void leave(const OpArgs& op, int tile_row0, int barrier) const {
    if constexpr (kChainOps[kOp].squares) {
      barrier_sync<kHolders>(barrier);
      for (int row = kFirst * 8 + team_thread(); row < kEnd * 8; row += kHolders) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < kHolders / 32; ++warp) {
          const int weight_row = warp / 4 * WgmmaTile<kOp>::kBlocks * kBlockRows + warp % 4 * 16;
          if (weight_row < WgmmaTile<kOp>::kSharedRows) sum += load_shared_float(norm.scratch + 4 * (warp * kConfig.tile_m + row));
        }
        if (tile_row0 + row < op.m) norm.squares[tile_row0 + row] = sum;
      }
      barrier_sync<kHolders>(barrier);  // before the next task's sums are written
    }
  }
};

// Like `load_early_residual`, for groups of rows kFirst to kEnd - 1.
template <int kOp, int kFirst = 0, int kEnd = kOps[kOp].tile_m / 8>
__device__ __forceinline__ void load_early_transposed(EarlyResidual<kOp>& early, const OpArgs& op, const Task& task) {
  using Tile = WgmmaTile<kOp>;
  using Columns = WarpColumns<kOp>;
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kBegin = kFirst * Columns::kFragments, kNumFragments = (kEnd - kFirst) * Columns::kFragments;
  static_assert(kEnd - kFirst <= kMostGroups<kOp>, "the groups fit in the array of loaded words");
  const int thread = team_thread(), lane = thread % 32;
#pragma unroll
  for (int block = 0; block < Tile::kBlocks; ++block) {
    const int weight_row = (thread / 128 * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
    const Columns columns(op, task.tile_n * kConfig.tile_n + (kConfig.gated ? weight_row / 2 : weight_row), lane);
#pragma unroll
    for (int i = 0; i < kNumFragments; ++i)
      early.words[block * kNumFragments + i] =
          weight_row < Tile::kSharedRows ? columns.residual_word(op, task.tile_m * kConfig.tile_m, kBegin + i, lane) : 0;
  }
}

// Finishes and stores the tile's groups of rows kFirst to kEnd - 1. n is a multiple of 8, so 8 columns are inside or
// outside as a whole.
template <int kOp, int kFirst = 0, int kEnd = kOps[kOp].tile_m / 8>
__device__ __forceinline__ void store_transposed_tile(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op,
                                                      const Task& task, const RowNorm& norm,
                                                      const EarlyResidual<kOp>& early) {
  using Tile = WgmmaTile<kOp>;
  constexpr bool kIsEarly = EarlyResidual<kOp>::kIsThere;
  using Columns = WarpColumns<kOp>;
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kBegin = kFirst * Columns::kFragments, kNumFragments = (kEnd - kFirst) * Columns::kFragments;
  constexpr int kInFours = kBegin + kNumFragments / 4 * 4, kEndFragment = kBegin + kNumFragments;
  constexpr int kBatch = kResidualsInFlight<kOp>;
  const int thread = team_thread(), group = thread / 128, lane = thread % 32, q = lane % 4;
  const int tile_row0 = task.tile_m * kConfig.tile_m;
  if constexpr (part_stores(kOp)) return PartStore<kOp, kFirst, kEnd>::store(acc, op, task, norm);
  TransposedSquares<kOp> squares{norm};
  Watch<kOp, kFirst, kEnd> watch;
  // The lane's word of a fragment, transposed.
  const auto finished = [&](const Columns& columns, const float* sums, int block, int fragment, u32 residual) {
    float out[2];
    columns.finish_two(out, sums, op, norm, tile_row0, fragment, lane, residual);
    watch.keep(op, columns, block, fragment, out);
    return transpose_fragment(Output<kOp>::narrow_two(out[0], out[1]));
  };
#pragma unroll
  for (int block = 0; block < Tile::kBlocks; ++block) {
    const int weight_row = (group * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
    if (weight_row >= Tile::kSharedRows) continue;  // columns of another tile
    const Columns columns(op, task.tile_n * kConfig.tile_n + (kConfig.gated ? weight_row / 2 : weight_row), lane);
    const float* sums = acc + block * Tile::kBlockSums;
    [[maybe_unused]] u32 residuals[kBatch];
    [[maybe_unused]] const int words_before = block * kNumFragments - kBegin;
#pragma unroll
    for (int first = kBegin; first < kInFours; first += 4) {
      u32 words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int fragment = first + i, loaded = (fragment - kBegin) % kBatch;
        if (!kIsEarly && loaded == 0)
          columns.load_residuals(residuals, kEndFragment - fragment, op, tile_row0, fragment, lane);
        const u32 residual = kIsEarly ? early.words[words_before + fragment] : residuals[loaded];
        words[i] = finished(columns, sums, block, fragment, residual);
        squares.add(block, first + i, words[i], lane);
      }
      transpose_four(words, q);
      const long long row = columns.row(tile_row0, first + q) + lane / 4;
      const int column = columns.column(first + q);
      if (row < op.m && column < op.n)
        store_finished<kOp>(op, norm, row * op.n + column, make_uint4(words[0], words[1], words[2], words[3]));
    }
#pragma unroll
    for (int fragment = kInFours; fragment < kEndFragment; ++fragment) {
      const int loaded = (fragment - kBegin) % kBatch;
      if (!kIsEarly && loaded == 0)
        columns.load_residuals(residuals, kEndFragment - fragment, op, tile_row0, fragment, lane);
      const u32 residual = kIsEarly ? early.words[words_before + fragment] : residuals[loaded];
      const u32 two = finished(columns, sums, block, fragment, residual);
      squares.add(block, fragment, two, lane);
      const long long row = columns.row(tile_row0, fragment) + lane / 4;
      const int column = columns.column(fragment);
      if (row < op.m && column < op.n)
        store_finished<kOp>(op, norm, row * op.n + column + q * 2, two);
    }
  }
  if (team_thread() < Tile::kHolders) {
    squares.template leave<kFirst, kEnd>(op, tile_row0, squares_barrier());
    watch.leave(op, task, norm);
  }
}
