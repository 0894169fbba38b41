// The epilogue of rotary.cuh from a warpgroup's accumulators, which hold pairs like those of a gated op
// (epilogue_wgmma.cuh, or epilogue_transposed.cuh if operands are swapped). Lanes swap words there as for any other op,
// once for each half of the heads.
#pragma once
#include "epilogue_transposed.cuh"
#include "rotary_pairs.cuh"

// Finishes and stores the tile's groups of columns kFirst to kEnd - 1.
template <int kOp, int kFirst, int kEnd>
__device__ __forceinline__ void store_turned_rows(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op,
                                                  const Task& task, const RowNorm& norm) {
  using Tile = WgmmaTile<kOp>;
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kInFours = kFirst + (kEnd - kFirst) / 4 * 4, kUp = kConfig.tile_n / 2;
  const LaunchArgs& launch = *norm.launch;
  const int thread = team_thread(), group = thread / 128, lane = thread % 32, q = lane % 4;
  const int column0 = task.tile_n * kConfig.tile_n;
#pragma unroll
  for (int block = 0; block < Tile::kBlocks; ++block) {
    const int warp_row = (group * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
    if (warp_row >= Tile::kSharedRows) continue;  // rows of another tile
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_in_tile = warp_row + lane / 4 + half * 8;
      const TileRow row = tile_row<kOp>(op, task, norm, row_in_tile);
      const NewToken token = new_token(launch, op, task.tile_m * kConfig.tile_m + row_in_tile);
      const float* sums = acc + block * Tile::kBlockSums + half * 2;
      const auto finish = [&](int j) {
        const int column = column0 + j * 8 + q * 2;
        float bias[2][2] = {};
        if constexpr (Bias<kOp>::is_there()) {
          Bias<kOp>::two(bias[0], op, column, 0);
          Bias<kOp>::two(bias[1], op, column, 1);
        }
        return finish_pairs<kOp>(launch, token, column, sums + j * 4, sums + kUp + j * 4, row.scale, bias[0], bias[1]);
      };
#pragma unroll
      for (int j = kFirst; j < kInFours; j += 4) {
        u32 first[4], second[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Pairs pairs = finish(j + i);
          first[i] = pairs.first, second[i] = pairs.second;
        }
        transpose_four(first, q);
        transpose_four(second, q);
        const int column = column0 + (j + q) * 8;
        if (row.is_inside && column < op.n)
          store_pairs(launch, op, token, column, make_uint4(first[0], first[1], first[2], first[3]),
                      make_uint4(second[0], second[1], second[2], second[3]));
      }
#pragma unroll
      for (int j = kInFours; j < kEnd; ++j) {
        const int column = column0 + j * 8 + q * 2;
        const Pairs pairs = finish(j);
        if (row.is_inside && column < op.n) store_pairs(launch, op, token, column, pairs.first, pairs.second);
      }
    }
  }
}

// Finishes and stores the tile's groups of rows kFirst to kEnd - 1. A lane has two rows of a column, so both of its
// words are rotated.
template <int kOp, int kFirst, int kEnd>
__device__ __forceinline__ void store_turned_transposed(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op,
                                                        const Task& task, const RowNorm& norm) {
  using Tile = WgmmaTile<kOp>;
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kInFours = kFirst + (kEnd - kFirst) / 4 * 4;
  const LaunchArgs& launch = *norm.launch;
  const int thread = team_thread(), group = thread / 128, lane = thread % 32, q = lane % 4;
  const int tile_row0 = task.tile_m * kConfig.tile_m;
#pragma unroll
  for (int block = 0; block < Tile::kBlocks; ++block) {
    const int weight_row = (group * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * 16;
    if (weight_row >= Tile::kSharedRows) continue;  // columns of another tile
    const int first_column = task.tile_n * kConfig.tile_n + weight_row / 2, own_column = first_column + lane / 4;
    const TileColumn column = tile_column<kOp>(op, own_column);
    const float* sums = acc + block * Tile::kBlockSums;
    const auto finish = [&](int j) {  // both halves' words of a group of rows, as the lanes of a row hold them
      float x[2], y[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row_in_tile = j * 8 + q * 2 + r;
        const TileRow row = tile_row<kOp>(op, task, norm, row_in_tile);
        const NewToken token = new_token(launch, op, tile_row0 + row_in_tile);
        x[r] = affine<kOp>(sums[j * 4 + r], row.scale, column.bias[0]);
        y[r] = affine<kOp>(sums[j * 4 + 2 + r], row.scale, column.bias[1]);
        turn_pair(x[r], y[r], turn_of(launch, token, own_column));
      }
      return Pairs{transpose_fragment(Element::narrow_two(x[0], x[1])), transpose_fragment(Element::narrow_two(y[0], y[1]))};
    };
#pragma unroll
    for (int j = kFirst; j < kInFours; j += 4) {
      const int row = tile_row0 + (j + q) * 8 + lane / 4;
      const NewToken stored = new_token(launch, op, row);  // early, so that the load of its page overlaps
      u32 first[4], second[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Pairs pairs = finish(j + i);
        first[i] = pairs.first, second[i] = pairs.second;
      }
      transpose_four(first, q);
      transpose_four(second, q);
      if (row < op.m && first_column < op.n)
        store_pairs(launch, op, stored, first_column, make_uint4(first[0], first[1], first[2], first[3]),
                    make_uint4(second[0], second[1], second[2], second[3]));
    }
#pragma unroll
    for (int j = kInFours; j < kEnd; ++j) {
      const int row = tile_row0 + j * 8 + lane / 4;
      const NewToken stored = new_token(launch, op, row);
      const Pairs pairs = finish(j);
      if (row < op.m && first_column < op.n) store_pairs(launch, op, stored, first_column + q * 2, pairs.first, pairs.second);
    }
  }
}

// Finishes and stores the tile's groups of columns (with swapped operands, of rows) kFirst to kEnd - 1.
template <int kOp, int kFirst = 0, int kEnd = (kSwapAb ? kOps[kOp].tile_m : kOps[kOp].tile_n) / 8>
__device__ __forceinline__ void store_turned_tile(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op,
                                                  const Task& task, const RowNorm& norm) {
  static_assert(!kTmaEpilogue, "TMA stores do not write to a cache");
  if constexpr (kSwapAb) {
    store_turned_transposed<kOp, kFirst, kEnd>(acc, op, task, norm);
  } else {
    store_turned_rows<kOp, kFirst, kEnd>(acc, op, task, norm);
  }
}
