// A task that its kind defines, in the engines in which the whole CTA runs the task loop.
#pragma once
#include "own_task.cuh"
#include "scheduler.cuh"
#include "sync.cuh"
#include "trace.cuh"

#if TUNER_OWN_TASKS != 0

// All threads of a CTA.
struct WholeCta {
  static constexpr int kCount = kNumThreads;
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static void sync() { __syncthreads(); }
};

// Computes, stores and publishes one tile; returns false to all threads if the launch was aborted. The next task is
// drawn when all waits are over.
template <int kOp>
__device__ __forceinline__ bool run_own_task(const LaunchArgs& args, const Task& task, Scheduler& scheduler,
                                             unsigned char* memory) {
  __shared__ PendingWaits pending;
  const bool waits = task.wait_begin != task.wait_end;
  if (threadIdx.x == 0 && !waits) trace_stamp(args, scheduler.next, kReady);
  if (!wait_for(args, task, scheduler.next, scheduler.epoch, kEpilogueStep, true, pending)) return false;
  if (threadIdx.x == 0 && waits) trace_stamp(args, scheduler.next, kReady);
  if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kLoaded);
  scheduler.draw_ahead();
  OwnTask<kOp>::run(args.ops[kOp], task, memory, WholeCta());
  if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kComputed);
  __syncthreads();
  if (threadIdx.x == 0) {
    post(args, task);
    trace_stamp(args, scheduler.next, kStored);
  }
  return true;
}
#endif
