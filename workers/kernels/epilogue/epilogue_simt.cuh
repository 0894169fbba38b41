// Row scale, bias, activation, gate, residual, rounding and the store of a tile whose sums lie in shared memory: at most
// an element a thread, along the columns, so that a warp writes whole sectors. A residual is read by who writes the same
// element.
#pragma once
#include "activation.cuh"
#include "launch_args.cuh"
#include "mainloop_simt.cuh"

template <int kOp>
__device__ void store_tile(const SimtTile<kOp>& tile, const LaunchArgs& args, const Task& task) {
  using Tile = SimtTile<kOp>;
  constexpr OpConfig kConfig = Tile::kConfig;
  const OpArgs& op = args.ops[task.op];
  static_assert(Tile::kTileM * Tile::kTileN <= kNumThreads, "an element a thread");
  const int i = static_cast<int>(threadIdx.x);
  if (i >= Tile::kTileM * Tile::kTileN) return;
  const int tile_row = i / Tile::kTileN, tile_column = i % Tile::kTileN;
  const int row = task.tile_m * Tile::kTileM + tile_row, column = task.tile_n * Tile::kTileN + tile_column;
  if (row >= op.m || column >= op.n) return;
  const long long element = static_cast<long long>(row) * op.n + column;
  const u32 sum = tile.sums + 4 * (tile_row * kConfig.weight_rows() + tile_column);
  float scale = 1.0f, bias[2] = {}, residual = 0.0f;
  if constexpr (kConfig.row_scale) scale = op.row_scale[row];
  if constexpr (kConfig.bias) bias[0] = unpack_one<kBf16>(op.bias[column]);
  if constexpr (kConfig.bias && kConfig.gated) bias[1] = unpack_one<kBf16>(op.bias[op.n + column]);
  if constexpr (kConfig.residual) residual = unpack_one<kBf16>(op.residual[element]);
  const auto finished = [&](u32 address, float own_bias) {
    return affine<kConfig.row_scale, kConfig.bias>(load_shared_float(address), scale, own_bias);
  };
  float out = activate<kConfig.activation>(finished(sum, bias[0]));
  if constexpr (kConfig.gated) out *= finished(sum + 4 * Tile::kTileN, bias[1]);
  out += residual;
  store_global<kConfig.output_hint>(op.c + element, static_cast<u16>(pack_two<kBf16>(out, 0.0f)));
}
