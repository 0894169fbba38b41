// The task of an op whose kind has what a task does. The loop over tasks waits, posts and stamps; the kind computes.
//
// A kind gives OwnTask<kOp>::run(op, task, memory, team): all threads of the team compute and store the tile of `task`,
// which lies at tile row task.tile_m and tile column task.tile_n. All that it reads of other ops is there. `memory` is
// shared, of as many bytes as the kind's rules say; nobody else uses it meanwhile, and what it held is gone. A load of
// what another op wrote must not go through the read-only cache. A team knows itself: which thread it is, how many there
// are, and their barrier.
#pragma once
#include "scheduler.cuh"
#include "sync.cuh"
#include "trace.cuh"

// Bit i: the kind of op i has what a task does. It is a macro, so that kernels without such an op stay the same to the
// byte.
#ifndef TUNER_OWN_TASKS
#define TUNER_OWN_TASKS 0
#endif
// The same of ops that gather their rows, which gather.cuh tells of.
#ifndef TUNER_GATHERS
#define TUNER_GATHERS 0
#endif

#if TUNER_OWN_TASKS != 0

template <int kOp>
struct OwnTask;

// All threads of a CTA.
struct WholeCta {
  static constexpr int kCount = kNumThreads;
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static void sync() { __syncthreads(); }
};

// Computes, stores and publishes one tile; false, for all threads alike, if the launch was aborted. The next task is drawn
// when all waits are over.
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
