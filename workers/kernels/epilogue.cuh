// Bias, activation, rounding and the store of a finished tile, straight from the accumulators.
//
// Layout of one 16 x 8 fragment: lane l holds columns 2 (l % 4) and the next of rows l / 4 and l / 4 + 8.
#pragma once
#include "launch_args.cuh"
#include "mainloop_mma.cuh"

// In fp32. Each propagates NaN.
template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == kRelu) return x < 0.0f ? 0.0f : x;
  if constexpr (kActivation == kGelu) {
    // The tanh form; sqrt(2 / pi) and the cubic's coefficient are Hendrycks and Gimpel's, arXiv:1606.08415.
    const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
  }
  if constexpr (kActivation == kSilu) return x / (1.0f + __expf(-x));
  return x;
}

template <int kOp>
__device__ void store_tile(const MmaTile<kOp>& tile, const LaunchArgs& args, const Task& task) {
  using Tile = MmaTile<kOp>;
  constexpr OpConfig kConfig = Tile::kConfig;
  const OpArgs& op = args.ops[task.op];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row0 = task.tile_m * Tile::kTileM + warp / kConfig.warps_n * Tile::kWarpM + lane / 4;
  const int column0 = task.tile_n * Tile::kTileN + warp % kConfig.warps_n * Tile::kWarpN + lane % 4 * 2;
  const bool pairs = op.n % 2 == 0;  // then a pair of columns is 4-byte aligned, and never half outside
#pragma unroll
  for (int j = 0; j < Tile::kFragsN; ++j) {
    const int column = column0 + j * 8;
    float bias[2] = {0.0f, 0.0f};
    if constexpr (kConfig.bias) {
      if (column < op.n) bias[0] = unpack_one<kBf16>(__ldg(op.bias + column));
      if (column + 1 < op.n) bias[1] = unpack_one<kBf16>(__ldg(op.bias + column + 1));
    }
#pragma unroll
    for (int i = 0; i < Tile::kFragsM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + i * 16 + half * 8;
        if (row >= op.m || column >= op.n) continue;
        const u32 packed = pack_two<kBf16>(activate<kConfig.activation>(tile.acc[Tile::index(i, j) + 2 * half] + bias[0]),
                                           activate<kConfig.activation>(tile.acc[Tile::index(i, j) + 2 * half + 1] + bias[1]));
        u16* target = op.c + static_cast<long long>(row) * op.n + column;
        if (pairs) {
          *reinterpret_cast<u32*>(target) = packed;
        } else {
          target[0] = static_cast<u16>(packed);
          if (column + 1 < op.n) target[1] = static_cast<u16>(packed >> 16);
        }
      }
    }
  }
}
