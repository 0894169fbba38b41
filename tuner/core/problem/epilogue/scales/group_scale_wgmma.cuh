// The epilogue of outputs, or of operands beside them, with a scale for each row and 128 columns: a tile has all columns
// of one group.
//
// With swapped operands, elements of outputs are finished twice, since no registers are left to keep them; those of
// operands replace the sums of their products, which are not gated. First each warp finds
// the largest magnitude of its columns of each row, and leaves it in shared memory: [warps][tile_m]. One thread for each
// row finds the largest of them, and stores the scale. The second time, elements are divided by their row's scale and
// stored. Magnitudes are compared as integers, so that a NaN is larger than any number, and the scale of a task whose
// launch is aborted is NaN.
//
// Two barriers are enough: the scales have a row of their own, which is written again after the next task's first
// barrier, and warps write theirs again after this task's second one.
//
// Otherwise, four lanes have all columns of a row. They keep the finished elements, and find the largest by shuffles.
//
// An operand's elements are those of the output, before rounding, times a factor per column. Readers copy them like the
// output itself, after the same post.
#pragma once
#include "epilogue_transposed.cuh"

// The largest number of an element; the least of a group's largest element.
constexpr float kLargestInGroup = 448.0f, kLeastInGroup = 1e-10f;

// Whether a tile is inside the matrix: that of a cluster's last CTA may be beyond the last column.
template <int kOp>
__device__ __forceinline__ bool has_group(const OpArgs& op, const Task& task) {
  static_assert(kOps[kOp].tile_n == 128, "a tile is a group");
  if constexpr (kClusterN == 1) return true;
  return task.tile_n < op.n / kOps[kOp].tile_n;
}

// Stores the scales of groups of rows kFirst to kEnd - 1 to shared memory and to the op's pointer `kFactors` of parts;
// `most` has the bits of a lane's largest magnitudes. Called by all threads that hold part of the tile.
template <int kOp, int kFirst, int kEnd, int kFactors>
__device__ __forceinline__ void leave_scales(u32 (&most)[2 * (kEnd - kFirst)], const OpArgs& op, const Task& task,
                                             const RowNorm& norm, int tile_row0, int thread, int lane) {
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kHolders = WgmmaTile<kOp>::kHolders, kWarps = kHolders / 32;
#pragma unroll
  for (int i = 0; i < 2 * (kEnd - kFirst); ++i) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) most[i] = max(most[i], __shfl_xor_sync(0xFFFFFFFFu, most[i], lanes));
    const int row = (kFirst + i / 2) * 8 + lane % 4 * 2 + i % 2;
    if (lane < 4) store_shared(norm.scratch + 4 * (thread / 32 * kConfig.tile_m + row), __uint_as_float(most[i]));
  }
  barrier_sync<kHolders>(squares_barrier());
  float* const factors = static_cast<float*>(const_cast<void*>(op.parts[kFactors]));
  for (int row = kFirst * 8 + thread; row < kEnd * 8; row += kHolders) {
    u32 largest = __float_as_uint(kLeastInGroup);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      largest = max(largest, __float_as_uint(load_shared_float(norm.scratch + 4 * (warp * kConfig.tile_m + row))));
    }
    const float scale = __uint_as_float(largest) * (1.0f / kLargestInGroup);
    store_shared(norm.scratch + 4 * (kTeamWarps * kConfig.tile_m + row), scale);
    if (tile_row0 + row < op.m && has_group<kOp>(op, task))
      factors[(tile_row0 + row) * (op.n / kConfig.tile_n) + task.tile_n] = scale;
  }
  barrier_sync<kHolders>(squares_barrier());
}

// Where `leave_scales` leaves the scales of a tile's rows in shared memory.
template <int kOp>
__device__ __forceinline__ u32 place_of_scales(const RowNorm& norm) {
  return norm.scratch + 4 * kTeamWarps * kOps[kOp].tile_m;
}

// Divides the lane's elements of a fragment by the scales of their rows.
template <int kOp>
__device__ __forceinline__ void divide_by_scales(float (&out)[2], u32 place, int fragment, int lane) {
  float scales[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    scales[r] = load_shared_float(place + 4 * (fragment / WarpColumns<kOp>::kFragments * 8 + lane % 4 * 2 + r));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) out[r] = __fdividef(out[r], scales[r]);
}

// The same scale for the four lanes of a row, from a lane's finished elements.
template <int kGroups>
__device__ __forceinline__ float scale_of_row(const float (&values)[kGroups][2]) {
  u32 largest = __float_as_uint(kLeastInGroup);
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) largest = max(largest, __float_as_uint(values[i / 2][i % 2]) & 0x7FFFFFFFu);
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, lanes));
  return __uint_as_float(largest) * (1.0f / kLargestInGroup);
}

// Like `WgmmaTile::multiply_promoted`, for a group's sums that do not fit the registers twice, of W as operand B: pieces of
// 64 columns have separate sums, and one is multiplied while the one before is added.
template <int kOp, class Issued>
__device__ void multiply_in_pieces(float (&acc)[kMaxWgmmaAccumulators], int num_steps, const Stages& stages,
                                   StagePlaces& places, const Issued& issued) {
  using Tile = WgmmaTile<kOp>;
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kBlocks = Tile::kBlocks, kStageLines = Tile::kStageLines, kBlockSums = Tile::kBlockSums;
  constexpr int kPiece = 64, kPieceSums = kPiece / 2, kPieces = kBlockSums / kPieceSums;
  constexpr int kProducts = kStageLines * kBlocks * kPieces;
  static_assert(kConfig.tile_n % kPiece == 0, "a piece belongs to the gate or to the up projection");
  const int lane = thread_number() % 32;
  const typename Tile::Operands first(stages);
  float sums[2][kPieceSums];
  const auto add = [&](int number) {
    float* const own = acc + number / kPieces % kBlocks * kBlockSums + number % kPieces * kPieceSums;
#pragma unroll
    for (int i = 0; i < kPieceSums; ++i) own[i] += sums[number % 2][i];
  };
  Tile::fill(acc, 0.0f);
#pragma unroll 1
  for (int left = num_steps; left > 0; --left) {
    stages.wait_filled(places);
    const typename Tile::Operands operands = first.at(places);
#pragma unroll
    for (int number = 0; number < kProducts; ++number) {
      const int line = number / (kBlocks * kPieces), block = number / kPieces % kBlocks, row = number % kPieces * kPiece;
      const int b_row = (row / kConfig.tile_n * kStageLines + line) * kConfig.tile_n + row % kConfig.tile_n;
      wgmma_fence();
#pragma unroll
      for (int slice = 0; slice < 4; ++slice) {
        const int a_units = (line * Tile::kSharedRows + block * kBlockRows) * (kLineBytes / 16) + slice * 2;
        const int b_units = b_row * (kLineBytes / 16) + slice * 2;
        Wgmma<kPiece>::multiply(sums[number % 2], operand_descriptor(operands.a() + a_units),
                                operand_descriptor(operands.b() + b_units), slice > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (number > 0) add(number - 1);
    }
    wgmma_wait<0>();
    add(kProducts - 1);
    places.advance();
    stages.release_before(places, lane);
  }
  issued();
}

// `kFactors` is the position of the scales among the op's pointers of parts.
template <int kOp, int kFirst, int kEnd, int kFactors, bool kIsSwapped = kSwapAb>
struct GroupedTile {
  using Tile = WgmmaTile<kOp>;
  using Columns = WarpColumns<kOp>;
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kFragments = Columns::kFragments, kBegin = kFirst * kFragments;
  static constexpr int kNumFragments = (kEnd - kFirst) * kFragments, kEndFragment = kEnd * kFragments;
  static constexpr int kInFours = kBegin + kNumFragments / 4 * 4;
  static constexpr int kHolders = Tile::kHolders, kWarps = kHolders / 32;

  // The lane's word of a fragment, divided by the scales of its rows, transposed.
  __device__ static __forceinline__ u32 divided(const Columns& columns, const float* sums, const OpArgs& op, const RowNorm& norm,
                                                u32 place, int tile_row0, int fragment, int lane) {
    float out[2];
    columns.finish_two(out, sums, op, norm, tile_row0, fragment, lane);
    divide_by_scales<kOp>(out, place, fragment, lane);
    return transpose_fragment(Output<kOp>::narrow_two(out[0], out[1]));
  }

  __device__ static __forceinline__ Columns columns_of(const OpArgs& op, const Task& task, int weight_row, int lane) {
    return Columns(op, task.tile_n * kConfig.tile_n + weight_row * kFragments / 2, lane);
  }

  // Called by all threads that hold part of the tile.
  __device__ static __forceinline__ void store_scales(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op,
                                                      const Task& task, const RowNorm& norm, int tile_row0) {
    const int thread = team_thread(), group = thread / 128, lane = thread % 32;
    u32 most[2 * (kEnd - kFirst)] = {};
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
      const int weight_row = (group * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
      if (weight_row >= Tile::kSharedRows) continue;
      const Columns columns = columns_of(op, task, weight_row, lane);
#pragma unroll
      for (int fragment = kBegin; fragment < kEndFragment; ++fragment) {
        float out[2];
        columns.finish_two(out, acc + block * Tile::kBlockSums, op, norm, tile_row0, fragment, lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          u32& own = most[(fragment - kBegin) / kFragments * 2 + r];
          own = max(own, __float_as_uint(out[r]) & 0x7FFFFFFFu);
        }
      }
    }
    leave_scales<kOp, kFirst, kEnd, kFactors>(most, op, task, norm, tile_row0, thread, lane);
  }

  __device__ static __forceinline__ void store(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op, const Task& task,
                                               const RowNorm& norm) {
    static_assert(kConfig.tile_n == 128, "a tile is a group");
    const int thread = team_thread(), group = thread / 128, lane = thread % 32, q = lane % 4;
    const int tile_row0 = task.tile_m * kConfig.tile_m;
    if (thread < kHolders) store_scales(acc, op, task, norm, tile_row0);
    const u32 place = place_of_scales<kOp>(norm);
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
      const int weight_row = (group * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
      if (weight_row >= Tile::kSharedRows) continue;
      const Columns columns = columns_of(op, task, weight_row, lane);
      const float* const sums = acc + block * Tile::kBlockSums;
#pragma unroll
      for (int first = kBegin; first < kInFours; first += 4) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = divided(columns, sums, op, norm, place, tile_row0, first + i, lane);
        transpose_four(words, q);
        const long long row = columns.row(tile_row0, first + q) + lane / 4;
        const int column = columns.column(first + q);
        if (row < op.m && column < op.n)
          store_finished<kOp>(op, norm, row * op.n + column, make_uint4(words[0], words[1], words[2], words[3]));
      }
#pragma unroll
      for (int fragment = kInFours; fragment < kEndFragment; ++fragment) {
        const u32 two = divided(columns, sums, op, norm, place, tile_row0, fragment, lane);
        const long long row = columns.row(tile_row0, fragment) + lane / 4;
        const int column = columns.column(fragment);
        if (row < op.m && column < op.n) store_finished<kOp>(op, norm, row * op.n + column + q * 2, two);
      }
    }
  }
};

template <int kOp, int kFirst, int kEnd, int kFactors>
struct GroupedTile<kOp, kFirst, kEnd, kFactors, false> {
  using Tile = WgmmaTile<kOp>;
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kGroups = kConfig.tile_n / 8;
  static_assert(kConfig.tile_n == 128 && kFirst == 0 && kEnd == kGroups, "a tile is a group");

  // A lane's two finished elements of a group of columns; such an op has no residual.
  __device__ static __forceinline__ void finish(float (&out)[2], const float* sums, const OpArgs& op, const TileRow& row,
                                                int column) {
    float bias[2][2] = {};
    if constexpr (Bias<kOp>::is_there()) Bias<kOp>::two(bias[0], op, column, 0);
    if constexpr (Bias<kOp>::is_there() && kConfig.gated) Bias<kOp>::two(bias[1], op, column, 1);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const auto up = [=] { return sums[kConfig.tile_n / 2 + c]; };
      out[c] = finish_output<kOp>(sums[c], up, row.scale, bias[0][c], bias[1][c], op, row.number, column + c);
      out[c] = finish_result<kOp>(out[c], op, row.number, column + c);
    }
  }

  __device__ static __forceinline__ void store(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op, const Task& task,
                                               const RowNorm& norm) {
    const int thread = team_thread(), lane = thread % 32, q = lane % 4, column0 = task.tile_n * kConfig.tile_n;
    float* const factors = static_cast<float*>(const_cast<void*>(op.parts[kFactors]));
#pragma unroll
    for (int i = 0; i < 2 * Tile::kBlocks; ++i) {
      const int block = i / 2, half = i % 2;
      const int warp_row = (thread / 128 * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
      if (warp_row >= Tile::kSharedRows) continue;  // rows of another tile
      const TileRow row = tile_row<kOp>(op, task, norm, warp_row + lane / 4 + half * 8);
      const float* const sums = acc + block * Tile::kBlockSums + half * 2;
      float values[kGroups][2];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) finish(values[j], sums + j * 4, op, row, column0 + j * 8 + q * 2);
      const float scale = scale_of_row(values);
      if (q == 0 && row.is_inside && has_group<kOp>(op, task)) factors[row.number * (op.n / kConfig.tile_n) + task.tile_n] = scale;
#pragma unroll
      for (int j = 0; j < kGroups; j += 4) {
        u32 words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w)
          words[w] = Output<kOp>::narrow_two(__fdividef(values[j + w][0], scale), __fdividef(values[j + w][1], scale));
        transpose_four(words, q);
        const int column = column0 + (j + q) * 8;
        if (row.is_inside && column < op.n)
          store_finished<kOp>(op, norm, row.first + column, make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }
};

// The operand of an op: the struct `PartWatch`. `kPart` is the position of the part's factors of columns among the op's
// pointers of parts; the operand's elements and its scales follow.
template <int kOp, int kFirst, int kEnd, int kPart, bool kIsSwapped = kSwapAb>
struct GroupedOperand {
  using Tile = WgmmaTile<kOp>;
  using Columns = WarpColumns<kOp>;
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kFragments = Columns::kFragments, kBegin = kFirst * kFragments;
  static constexpr int kNumFragments = (kEnd - kFirst) * kFragments, kInFours = kNumFragments / 4 * 4;

  float kept[Tile::kBlocks][kNumFragments][2];
  u32 most[2 * (kEnd - kFirst)] = {};  // the bits of the largest magnitudes of the lane's rows

  __device__ __forceinline__ void keep(const OpArgs& op, const Columns& columns, int block, int fragment, const float (&out)[2]) {
    const float* const factors = static_cast<const float*>(op.parts[kPart]);
    const float factor = factors[min(columns.column(fragment) + team_thread() % 32 / 4, op.n - 1)];
    float(&own)[2] = kept[block][fragment - kBegin];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own[r] = out[r] * factor;
      u32& largest = most[(fragment - kBegin) / kFragments * 2 + r];
      largest = max(largest, __float_as_uint(own[r]) & 0x7FFFFFFFu);
    }
  }

  // The lane's word of a fragment, divided by the scales of its rows, transposed.
  __device__ __forceinline__ u32 divided(u32 place, int block, int i, int lane) {
    float(&own)[2] = kept[block][i];
    divide_by_scales<kOp>(own, place, kBegin + i, lane);
    return transpose_fragment(Element::narrow_two(own[0], own[1]));
  }

  __device__ __forceinline__ void leave(const OpArgs& op, const Task& task, const RowNorm& norm) {
    u8* const values = static_cast<u8*>(const_cast<void*>(op.parts[kPart + 1]));
    const int thread = team_thread(), group = thread / 128, lane = thread % 32, q = lane % 4;
    const int tile_row0 = task.tile_m * kConfig.tile_m;
    leave_scales<kOp, kFirst, kEnd, kPart + 2>(most, op, task, norm, tile_row0, thread, lane);
    const u32 place = place_of_scales<kOp>(norm);
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
      const int weight_row = (group * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
      if (weight_row >= Tile::kSharedRows) continue;
      const Columns columns(op, task.tile_n * kConfig.tile_n + weight_row * kFragments / 2, lane);
#pragma unroll
      for (int first = 0; first < kInFours; first += 4) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = divided(place, block, first + i, lane);
        transpose_four(words, q);
        const long long row = columns.row(tile_row0, kBegin + first + q) + lane / 4;
        const int column = columns.column(kBegin + first + q);
        if (row < op.m && column < op.n)
          store_packed<kConfig.output_hint>(values + row * op.n + column, make_uint4(words[0], words[1], words[2], words[3]));
      }
#pragma unroll
      for (int i = kInFours; i < kNumFragments; ++i) {
        const u32 two = divided(place, block, i, lane);
        const long long row = columns.row(tile_row0, kBegin + i) + lane / 4;
        const int column = columns.column(kBegin + i);
        if (row < op.m && column < op.n) store_packed<kConfig.output_hint>(values + row * op.n + column + q * 2, two);
      }
    }
  }
};

template <int kOp, int kFirst, int kEnd, int kPart>
struct GroupedOperand<kOp, kFirst, kEnd, kPart, false> {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kGroups = kConfig.tile_n / 8;
  static_assert(kConfig.tile_n == 128 && kFirst == 0 && kEnd == kGroups, "a tile is a group");

  float kept[kGroups][2];  // of a row

  __device__ __forceinline__ void keep(const OpArgs& op, const TileRow&, int group, int column, const float (&out)[2]) {
    const float* const factors = static_cast<const float*>(op.parts[kPart]);
#pragma unroll
    for (int c = 0; c < 2; ++c) kept[group][c] = out[c] * factors[min(column + c, op.n - 1)];
  }

  __device__ __forceinline__ void leave(const OpArgs& op, const Task& task, const TileRow& row) const {
    const int q = team_thread() % 4;
    const float scale = scale_of_row(kept);
    float* const factors = static_cast<float*>(const_cast<void*>(op.parts[kPart + 2]));
    if (q == 0 && row.is_inside && has_group<kOp>(op, task))
      factors[row.number * (op.n / kConfig.tile_n) + task.tile_n] = scale;
    u8* const values = static_cast<u8*>(const_cast<void*>(op.parts[kPart + 1]));
#pragma unroll
    for (int j = 0; j < kGroups; j += 4) {
      u32 words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        words[w] = Element::narrow_two(__fdividef(kept[j + w][0], scale), __fdividef(kept[j + w][1], scale));
      transpose_four(words, q);
      const int column = task.tile_n * kConfig.tile_n + (j + q) * 8;
      if (row.is_inside && column < op.n)
        store_packed<kConfig.output_hint>(values + row.first + column, make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
};
