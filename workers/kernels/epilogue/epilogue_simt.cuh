// Row scale, bias, activation, gate, residual, rounding and the store of a tile whose sums are in shared memory: at
// most one element per thread, along the columns, so that a warp writes whole sectors. A residual is read by the thread
// that writes the same element.
#pragma once
#include "finish.cuh"
#include "launch_args.cuh"
#include "mainloop_simt.cuh"
#include "norm.cuh"
#include "rotary.cuh"

// Each warp computes the factor of one row of the tile, from its sums of squares. The ring is free by now.
template <int kOp>
__device__ __forceinline__ void load_factors_of_rows(const LaunchArgs& args, const Task& task, u32 factors) {
  using Tile = SimtTile<kOp>;
  const OpArgs& op = args.ops[task.op];
  constexpr int kLoadsInFlight = 4;
  for (int i = Tile::warp(); i < Tile::kTileM; i += kNumWarps) {
    const int row = task.tile_m * Tile::kTileM + i, lane = Tile::lane();
    float sum = 0.0f;
    if (row < op.m) {
#pragma unroll 1
      for (int slot = lane; slot - lane < op.num_slots; slot += 32 * kLoadsInFlight) {  // as in norm.cuh
        float found[kLoadsInFlight];
#pragma unroll
        for (int j = 0; j < kLoadsInFlight; ++j)
          found[j] = load_past_l1(op.row_scale + min(slot + 32 * j, op.num_slots - 1) * squares_stride(op) + row);
#pragma unroll
        for (int j = 0; j < kLoadsInFlight; ++j) sum += slot + 32 * j < op.num_slots ? found[j] : 0.0f;
      }
    }
    sum = add_lanes(sum);
    if (lane == 0) store_shared(factors + 4 * i, factor_of(sum, op.k, args.chain_of(task.op).eps));
  }
  __syncthreads();
}

// Adds up, for each row, the squares of the values that its threads have stored; in memory, each square has replaced
// its sum.
template <int kOp>
__device__ __forceinline__ void leave_squares_of_rows(const SimtTile<kOp>& tile, const LaunchArgs& args, const Task& task) {
  using Tile = SimtTile<kOp>;
  float* slot = own_slot<kOp>(args, task);
  __syncthreads();
  for (int i = Tile::warp(); i < Tile::kTileM; i += kNumWarps) {
    const int row = task.tile_m * Tile::kTileM + i, lane = Tile::lane();
    float sum = 0.0f;
    for (int column = lane; column < Tile::kTileN; column += 32)
      sum += load_shared_float(tile.sums + 4 * (i * Tile::kConfig.weight_rows() + column));
    sum = add_lanes(sum);
    if (lane == 0 && row < args.ops[task.op].m) slot[row] = sum;
  }
}

// Finishes and stores an element of the tile. If the op writes sums of squares, the square of the element replaces its
// sum in memory, or a zero outside the matrix.
template <int kOp>
__device__ __forceinline__ void store_element(const SimtTile<kOp>& tile, const LaunchArgs& args, const Task& task,
                                              u32 factors) {
  using Tile = SimtTile<kOp>;
  constexpr OpConfig kConfig = Tile::kConfig;
  const OpArgs& op = args.ops[task.op];
  static_assert(Tile::kTileM * Tile::kTileN <= kNumThreads, "each thread finishes at most one element");
  const int i = static_cast<int>(threadIdx.x);
  if (i >= Tile::kTileM * Tile::kTileN) return;
  const int tile_row = i / Tile::kTileN, tile_column = i % Tile::kTileN;
  const int row = task.tile_m * Tile::kTileM + tile_row, column = task.tile_n * Tile::kTileN + tile_column;
  const u32 sum = tile.sums + 4 * (tile_row * kConfig.weight_rows() + tile_column);
  if (row >= op.m || column >= op.n) {
    if constexpr (kChainOps[kOp].squares) store_shared(sum, 0.0f);
    return;
  }
  const long long element = static_cast<long long>(row) * op.n + column;
  float scale = RowScale<kOp>::of(op, row, true), bias[2] = {};
  if constexpr (kChainOps[kOp].norm) scale = load_shared_float(factors + 4 * tile_row);
  bias[0] = Bias<kOp>::one(op, column, 0);
  if constexpr (kConfig.gated) bias[1] = Bias<kOp>::one(op, column, 1);
  const float residual = Residual<kOp>::one(op, element);
  if constexpr (kOp == kRotaryOp) {
    const auto finished = [&](u32 address, float own_bias) {
      return affine<kOp>(load_shared_float(address), scale, own_bias);
    };
    const NewToken token = new_token(args, op, row);
    float x = finished(sum, bias[0]), y = finished(sum + 4 * Tile::kTileN, bias[1]);
    turn_pair(x, y, turn_of(args, token, column));
    store_pairs(args, op, token, column, static_cast<Element::Bits>(Element::narrow(x)),
                static_cast<Element::Bits>(Element::narrow(y)));
    return;
  }
  const auto up = [&] { return load_shared_float(sum + 4 * Tile::kTileN); };
  float out = finish_output<kOp>(load_shared_float(sum), up, scale, bias[0], bias[1], op, row, column);
  out = Residual<kOp>::apply(out, residual);
  out = finish_result<kOp>(out, op, row, column);
  const u32 word = Output<kOp>::narrow(out);
  using Bits = typename Output<kOp>::Bits;
  store_global<kConfig.output_hint>(reinterpret_cast<Bits*>(op.c) + element, static_cast<Bits>(word));
  if constexpr (kChainOps[kOp].squares) store_shared(sum, squares_of<Output<kOp>>(word));
}

template <int kOp>
__device__ void store_tile(const SimtTile<kOp>& tile, const LaunchArgs& args, const Task& task) {
  const u32 factors = tile.sums - kNumStages * kStageBytes;
  if constexpr (kChainOps[kOp].norm) load_factors_of_rows<kOp>(args, task, factors);
  store_element<kOp>(tile, args, task, factors);
  if constexpr (kChainOps[kOp].squares) leave_squares_of_rows<kOp>(tile, args, task);
}
