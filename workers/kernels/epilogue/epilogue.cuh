// Row scale, bias, activation, gate, residual, rounding and the store of a finished tile, directly from the
// accumulators.
//
// Layout of one 16 x 8 fragment: lane l holds columns 2 (l % 4) and 2 (l % 4) + 1 of rows l / 4 and l / 4 + 8.
#pragma once
#include "finish.cuh"
#include "launch_args.cuh"
#include "mainloop_mma.cuh"
#include "norm.cuh"
#include "rotary_pairs.cuh"

// Columns are processed in adjacent pairs, one of which may be outside. A residual is read by the thread that
// writes the same element. Plain loads are used, since the previous launch may have just written residual and row
// scale.
//
// The ring is free by now, since all warps have passed the main loop's last barrier. It now holds the factors of a
// norm, followed by the sums of squares [warps_n][tile_m] of warps that share rows.
template <int kOp>
__device__ void store_tile(const MmaTile<kOp>& tile, const LaunchArgs& args, const Task& task) {
  using Tile = MmaTile<kOp>;
  constexpr OpConfig kConfig = Tile::kConfig;
  constexpr bool kLeavesSquares = kChainOps[kOp].squares;
  const RowNorm norm{tile.ring, own_slot<kOp>(args, task), tile.ring + 4 * Tile::kTileM};
  static_assert((1 + kConfig.warps_n) * 4 * Tile::kTileM <= kNumStages * kStageBytes,
                "the sums of squares fit in the ring");
  if constexpr (kChainOps[kOp].norm) {
    if (threadIdx.x < 32) load_factors<Tile::kTileM>(args, task.op, task.tile_m * Tile::kTileM, norm.factors);
    __syncthreads();
  }
  float squares[Tile::kFragsM][2] = {};
  constexpr int kFragsPerColumn = kConfig.gated ? 2 : 1;
  const OpArgs& op = args.ops[task.op];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row0 = task.tile_m * Tile::kTileM + warp / kConfig.warps_n * Tile::kWarpM + lane / 4;
  const int column0 = task.tile_n * Tile::kTileN + warp % kConfig.warps_n * Tile::kWarpN + lane % 4 * 2;
  const bool pairs = op.n % 2 == 0;  // in that case, a pair of columns is 4-byte aligned and never half outside
  float scale[Tile::kFragsM][2];
#pragma unroll
  for (int i = 0; i < Tile::kFragsM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + i * 16 + half * 8;
      scale[i][half] = 1.0f;
      if constexpr (RowScale<kOp>::is_there()) scale[i][half] = RowScale<kOp>::of(op, row);
      if constexpr (kChainOps[kOp].norm)
        scale[i][half] = load_shared_float(norm.factors + 4 * (row - task.tile_m * Tile::kTileM));
    }
  }
#pragma unroll
  for (int j = 0; j < Tile::kFragsN; j += kFragsPerColumn) {
    const int column = column0 + j / kFragsPerColumn * 8;
    float bias[kFragsPerColumn][2] = {};
    if constexpr (Bias<kOp>::is_there()) {
#pragma unroll
      for (int side = 0; side < kFragsPerColumn; ++side) Bias<kOp>::two(bias[side], op, column, side);
    }
#pragma unroll
    for (int i = 0; i < Tile::kFragsM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + i * 16 + half * 8;
        if (row >= op.m || column >= op.n) continue;
        const long long first = static_cast<long long>(row) * op.n + column;
        const float* sums = tile.acc + Tile::index(i, j) + 2 * half;
        if constexpr (kOp == kRotaryOp) {
          const NewToken token = new_token(args, op, row);
          const Pairs pairs_of_row = finish_pairs<kOp>(args, token, column, sums, sums + Tile::index(0, 1), scale[i][half],
                                                       bias[0], bias[kFragsPerColumn - 1]);
          store_pairs(args, op, token, column, pairs_of_row.first, pairs_of_row.second);
          continue;
        }
        float residual[2] = {0.0f, 0.0f};
        if constexpr (Residual<kOp>::is_there()) Residual<kOp>::two(residual, op, first - column, column);
        float out[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const auto up = [&] { return sums[Tile::index(0, 1) + c]; };
          const float up_bias = bias[kFragsPerColumn - 1][c];
          float sum = sums[c];
          if constexpr (Residual<kOp>::is_of_sums()) sum = sums[c] + residual[c];
          out[c] = finish_output<kOp>(sum, up, scale[i][half], bias[0][c], up_bias, op, row, column + c);
          if constexpr (Residual<kOp>::is_there() && !Residual<kOp>::is_of_sums()) out[c] = Residual<kOp>::apply(out[c], residual[c]);
          out[c] = finish_result<kOp>(out[c], op, row, column + c);
        }
        const u32 packed = Output<kOp>::narrow_two(out[0], out[1]);
        if constexpr (kLeavesSquares) squares[i][half] += squares_of<Output<kOp>>(packed);
        u16* target = op.c + first;
        if (pairs) {
          store_global<kConfig.output_hint>(reinterpret_cast<u32*>(target), packed);
        } else {
          store_global<kConfig.output_hint>(target, static_cast<u16>(packed));
          if (column + 1 < op.n) store_global<kConfig.output_hint>(target + 1, static_cast<u16>(packed >> 16));
        }
      }
    }
  }
  if constexpr (kLeavesSquares) {
    const int warp_row = warp / kConfig.warps_n * Tile::kWarpM + lane / 4;
    const u32 own = norm.scratch + 4 * (warp % kConfig.warps_n * Tile::kTileM + warp_row);
#pragma unroll
    for (int i = 0; i < Tile::kFragsM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = add_four_lanes(squares[i][half]);
        if (lane % 4 == 0) store_shared(own + 4 * (i * 16 + half * 8), sum);
      }
    }
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x); row < Tile::kTileM; row += kNumThreads) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kConfig.warps_n; ++w) sum += load_shared_float(norm.scratch + 4 * (w * Tile::kTileM + row));
      const int row_of_matrix = task.tile_m * Tile::kTileM + row;
      if (row_of_matrix < op.m) norm.squares[row_of_matrix] = sum;
    }
  }
}
