// The persistent kernel: runs any verified plan of a chain of ops. A plan of a single op is the unfused launch.
//
// A main loop included before this file defines EngineTile<kOp>: `compute` computes the sums of a task's tile, `add_up`
// adds the parts of a tile, and `store_tile` finishes and stores it. All threads of the CTA take part in each.
#pragma once
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "own_task_cta.cuh"
#include "scheduler.cuh"
#include "sync.cuh"
#include "trace.cuh"
#ifdef TUNER_GUARDED
#include "launch_guard.cuh"
#endif

// Ops with equal configurations share one instance of the code.
__device__ constexpr bool same_config(const OpConfig& a, const OpConfig& b) {
  return a.tile_m == b.tile_m && a.tile_n == b.tile_n && a.tile_k == b.tile_k && a.warps_m == b.warps_m &&
         a.warps_n == b.warps_n && a.copy_bytes == b.copy_bytes && a.activation == b.activation && a.bias == b.bias &&
         a.gated == b.gated && a.residual == b.residual && a.row_scale == b.row_scale && a.num_parts == b.num_parts &&
         a.input_hint == b.input_hint && a.output_hint == b.output_hint;
}
__device__ constexpr bool same_chain_op(const ChainOp& a, const ChainOp& b) {
  return a.norm == b.norm && a.squares == b.squares && a.waits == b.waits;
}

__device__ constexpr bool is_alone(int op) { return op == kRotaryOp || ((TUNER_OWN_TASKS | TUNER_GATHERS) >> op & 1) != 0; }

__device__ constexpr int first_like(int op) {
  if (is_alone(op)) return op;
  for (int earlier = 0; earlier < op; ++earlier)
    if (!is_alone(earlier) && parts_of(earlier) == parts_of(op) && same_config(kOps[earlier], kOps[op]) && same_chain_op(kChainOps[earlier], kChainOps[op])) return earlier;
  return op;
}

// Computes, stores and publishes one tile, or computes a part of it; returns false to all threads if the launch was
// aborted.
template <int kOp = 0>
__device__ __forceinline__ bool run_task(const LaunchArgs& args, const Task& task, Scheduler& scheduler,
                                         unsigned char* memory, u32 ring, float (&accumulators)[kMaxAccumulators]) {
  if constexpr (kOp < kNumOps) {
    bool mine = false;
    if constexpr (first_like(kOp) == kOp) {
#pragma unroll
      for (int op = kOp; op < kNumOps; ++op) mine |= first_like(op) == kOp && task.op == op;
    }
    if constexpr (first_like(kOp) == kOp) {
#if TUNER_OWN_TASKS != 0
      if constexpr ((TUNER_OWN_TASKS >> kOp & 1) != 0) {
        if (mine) return run_own_task<kOp>(args, task, scheduler, memory);
      } else
#endif
      if (mine) {
        EngineTile<kOp> tile(accumulators);
        if (!tile.compute(args, task, scheduler, ring)) return false;
        if constexpr (kOps[kOp].num_parts > 1) {
          if (!tile.add_up(args, task, scheduler.epoch)) {
            if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kStored);
            return true;
          }
        }
        store_tile<kOp>(tile, args, task);
        __syncthreads();
        if (threadIdx.x == 0) {
          post(args, task);
          trace_stamp(args, scheduler.next, kStored);
        }
        return true;
      }
    }
    return run_task<kOp + 1>(args, task, scheduler, memory, ring, accumulators);
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(kNumThreads, kResidentCtas) tuner_chain(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(128) unsigned char ring_memory[];
  __shared__ Scheduler::Shared shared;
  const u32 ring = shared_address(ring_memory);
  begin_launch(args);
#ifdef TUNER_GUARDED
  if (threadIdx.x == 0) count_start(args);
#endif
  if (threadIdx.x == 0) trace_begin(args);
  Scheduler scheduler(args, shared);
  float accumulators[kMaxAccumulators];
  while (scheduler.has_task()) {
    if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kTaken);
    const Task task = scheduler.task();
    if (!run_task(args, task, scheduler, ring_memory, ring, accumulators)) break;
    scheduler.advance();
  }
  if (threadIdx.x == 0) trace_end(args);
#ifdef TUNER_GUARDED
  if (threadIdx.x == 0) count_end(args);
#endif
  poison_if_aborted(args);
}
