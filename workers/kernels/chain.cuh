// The persistent kernel: runs any verified plan of a chain of ops. One op's plan alone makes the unfused launch.
#pragma once
#include "epilogue.cuh"
#include "mainloop_mma.cuh"
#include "scheduler.cuh"
#include "sync.cuh"

// Ops of equal configuration share one instance of the code.
__device__ constexpr bool same_config(const OpConfig& a, const OpConfig& b) {
  return a.tile_m == b.tile_m && a.tile_n == b.tile_n && a.tile_k == b.tile_k && a.warps_m == b.warps_m &&
         a.warps_n == b.warps_n && a.copy_bytes == b.copy_bytes && a.activation == b.activation && a.bias == b.bias;
}

__device__ constexpr int first_like(int op) {
  for (int earlier = 0; earlier < op; ++earlier)
    if (same_config(kOps[earlier], kOps[op])) return earlier;
  return op;
}

// Computes, stores and publishes one tile; false, for all threads alike, if the launch was aborted.
template <int kOp = 0>
__device__ __forceinline__ bool run_task(const LaunchArgs& args, const Task& task, const Scheduler& scheduler, u32 ring) {
  if constexpr (kOp < kNumOps) {
    bool mine = false;
    if constexpr (first_like(kOp) == kOp) {
#pragma unroll
      for (int op = kOp; op < kNumOps; ++op) mine |= first_like(op) == kOp && task.op == op;
    }
    if constexpr (first_like(kOp) == kOp) {
      if (mine) {
        MmaTile<kOp> tile;
        if (!tile.compute(args, task, scheduler.next, scheduler.epoch, ring)) return false;
        store_tile<kOp>(tile, args, task);
        __syncthreads();
        post(args, task);
        return true;
      }
    }
    return run_task<kOp + 1>(args, task, scheduler, ring);
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(kNumThreads) tuner_chain(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(128) unsigned char ring_memory[];
  __shared__ int shared_next[2];
  const u32 ring = shared_address(ring_memory);
  Scheduler scheduler(args, shared_next);
  while (scheduler.has_task()) {
    const Task task = scheduler.task();
    const u64 drawn_ahead = scheduler.draw_ahead();
    if (!run_task(args, task, scheduler, ring)) break;
    scheduler.advance(drawn_ahead);
  }
  poison_if_aborted(args);
}
