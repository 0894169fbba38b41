// The mma.sync main loop: C tile = A tile W tile^T over all of k, through a ring of kNumStages stages in shared memory.
//
// Layout. A stage holds the A tile [tile_m][tile_k] and then the W tile [tile_n][tile_k], rows of tile_k elements cut
// into 16-byte chunks. Chunk c of row r lies at position c ^ swizzle(r), so that the eight rows which ldmatrix reads
// fall into eight different bank groups.
//
// Ragged edges. Rows beyond m or n and columns beyond k are copied with zero valid bytes, i.e. they are zero in shared
// memory; a copy is never wider than the alignment of a row (copy_bytes), so no copy straddles the end of k.
//
// Order. All threads copy, all threads compute. Step t waits for its own stage, passes the CTA barrier (which also says
// that everyone is done with the stage of step t - 1), copies step t + kNumStages - 1 into that stage, and computes.
// The weights of the first stages are requested before the wait for the producers: they depend on nobody.
#pragma once
#include "launch_args.cuh"
#include "sync.cuh"

template <int kOp>
struct MmaTile {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kTileM = kConfig.tile_m, kTileN = kConfig.tile_n, kTileK = kConfig.tile_k;
  static constexpr int kWarpM = kTileM / kConfig.warps_m, kWarpN = kTileN / kConfig.warps_n;
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 8;
  static constexpr int kChunks = kTileK / 8;  // 16-byte chunks of a row
  static constexpr int kRowBytes = kTileK * 2;
  static constexpr int kWOffset = kTileM * kRowBytes;
  static_assert(kConfig.warps_m * kConfig.warps_n == kNumWarps, "the warp grid must hold all warps");
  static_assert(kWarpM % 16 == 0 && kWarpN % 8 == 0, "a warp tile is made of 16 x 8 fragments");
  static_assert(kTileK == 32 || kTileK == 64 || kTileK == 128, "the swizzle knows rows of 4, 8 and 16 chunks");

  float acc[kFragsM][kFragsN][4];

  __device__ static constexpr int swizzle(int row) { return kChunks == 4 ? (row >> 1) & 3 : row & 7; }

  __device__ static constexpr int chunk_offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ swizzle(row)) * 16);
  }

  // Copies rows [row0, row0 + kRows) x columns [k0, k0 + kTileK) of a [num_rows, k] matrix into shared memory.
  template <int kRows>
  __device__ static void copy_tile(u32 shared, const u16* matrix, int row0, int num_rows, int k0, int k) {
    constexpr int kBytes = kConfig.copy_bytes;
    constexpr int kElements = kBytes / 2;
    constexpr int kCopiesPerRow = kTileK / kElements;
    constexpr int kCopies = kRows * kCopiesPerRow;
    constexpr int kRounds = (kCopies + kNumThreads - 1) / kNumThreads;
#pragma unroll(kBytes == 16 ? kRounds : 1)
    for (int round = 0; round < kRounds; ++round) {
      const int copy = round * kNumThreads + static_cast<int>(threadIdx.x);
      if (kCopies % kNumThreads != 0 && copy >= kCopies) break;
      const int row = copy / kCopiesPerRow, column = copy % kCopiesPerRow * kElements;
      const bool valid = row0 + row < num_rows && k0 + column < k;
      const u16* source = matrix + (valid ? static_cast<long long>(row0 + row) * k + k0 + column : 0);
      const u32 target = shared + chunk_offset(row, column / 8) + column % 8 * 2;
      if constexpr (kBytes >= 4) {
        cp_async<kBytes>(target, source, valid ? kBytes : 0);
      } else {
        const u16 element = valid ? load_element(source) : static_cast<u16>(0);
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(target), "h"(element) : "memory");
      }
    }
  }

  // Past L1, like cp.async.cg: an intermediate may have been written by another SM since the last launch.
  __device__ static u16 load_element(const u16* source) {
    u16 element;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(element) : "l"(source) : "memory");
    return element;
  }

  // Fragments of k-slice `slice` (16 columns) of one stage.
  struct Fragments {
    u32 a[kFragsM][4];
    u32 b[kFragsN][2];
  };

  __device__ static void load_fragments(Fragments& frags, u32 stage, int warp_m, int warp_n, int lane, int slice) {
#pragma unroll
    for (int i = 0; i < kFragsM; ++i) {
      const int row = warp_m * kWarpM + i * 16 + (lane & 15);
      ldmatrix_x4(frags.a[i], stage + chunk_offset(row, 2 * slice + (lane >> 4)));
    }
    const u32 w_tile = stage + kWOffset;
    const int chunk = 2 * slice + ((lane >> 3) & 1);
#pragma unroll
    for (int j = 0; j + 1 < kFragsN; j += 2) {
      const int row = warp_n * kWarpN + j * 8 + (lane & 7) + ((lane >> 4) << 3);
      u32 two[4];
      ldmatrix_x4(two, w_tile + chunk_offset(row, chunk));
      frags.b[j][0] = two[0], frags.b[j][1] = two[1], frags.b[j + 1][0] = two[2], frags.b[j + 1][1] = two[3];
    }
    if constexpr (kFragsN % 2 == 1) {
      const int row = warp_n * kWarpN + (kFragsN - 1) * 8 + (lane & 7);
      ldmatrix_x2(frags.b[kFragsN - 1], w_tile + chunk_offset(row, chunk));
    }
  }

  __device__ void compute_stage(u32 stage, int warp_m, int warp_n, int lane) {
    constexpr int kSlices = kTileK / 16;
    Fragments frags[2];
    load_fragments(frags[0], stage, warp_m, warp_n, lane, 0);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (slice + 1 < kSlices) load_fragments(frags[(slice + 1) & 1], stage, warp_m, warp_n, lane, slice + 1);
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) {
#pragma unroll
        for (int j = 0; j < kFragsN; ++j) {
          // Walk back every other row, so that two neighbours share an operand.
          const int column = i % 2 == 0 ? j : kFragsN - 1 - j;
          mma_m16n8k16<kBf16>(acc[i][column], frags[slice & 1].a[i], frags[slice & 1].b[column]);
        }
      }
    }
  }

  // Computes the tile into `acc`; false, for all threads alike, if the launch was aborted while it waited.
  __device__ bool compute(const LaunchArgs& args, const Task& task, int task_index, u32 epoch, u32 ring) {
    const OpArgs& op = args.ops[task.op];
    const int row0 = task.tile_m * kTileM, column0 = task.tile_n * kTileN;
    const int num_steps = (op.k + kTileK - 1) / kTileK;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_m = warp / kConfig.warps_n, warp_n = warp % kConfig.warps_n;

    for (int step = 0; step < kNumStages - 1 && step < num_steps; ++step)
      copy_tile<kTileN>(ring + step * kStageBytes + kWOffset, op.w, column0, op.n, step * kTileK, op.k);
    if (!wait_for(args, task, task_index, epoch)) {
      cp_async_wait<0>();
      return false;
    }
    for (int step = 0; step < kNumStages - 1; ++step) {
      if (step < num_steps) copy_tile<kTileM>(ring + step * kStageBytes, op.a, row0, op.m, step * kTileK, op.k);
      cp_async_commit();
    }

#pragma unroll
    for (int i = 0; i < kFragsM; ++i)
#pragma unroll
      for (int j = 0; j < kFragsN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.0f;

    int read_slot = 0, write_slot = kNumStages - 1;
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      cp_async_wait<kNumStages - 2>();
      __syncthreads();
      const int ahead = step + kNumStages - 1;
      if (ahead < num_steps) {
        const u32 slot = ring + write_slot * kStageBytes;
        copy_tile<kTileM>(slot, op.a, row0, op.m, ahead * kTileK, op.k);
        copy_tile<kTileN>(slot + kWOffset, op.w, column0, op.n, ahead * kTileK, op.k);
      }
      cp_async_commit();
      compute_stage(ring + read_slot * kStageBytes, warp_m, warp_n, lane);
      read_slot = read_slot + 1 == kNumStages ? 0 : read_slot + 1;
      write_slot = write_slot + 1 == kNumStages ? 0 : write_slot + 1;
    }
    cp_async_wait<0>();
    return true;
  }
};
