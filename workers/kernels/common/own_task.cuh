// The task of an op whose kind has what a task does. The loop over tasks waits, posts and stamps; the kind computes.
//
// A kind gives OwnTask<kOp>::run(op, task, memory): all threads of the CTA compute and store the tile of `task`, which
// lies at tile row task.tile_m and tile column task.tile_n. All that it reads of other ops is there. `memory` is the CTA's
// dynamic shared memory, of as many bytes as the kind's rules say; nobody else uses it meanwhile, and what it held is
// gone. A load of what another op wrote must not go through the read-only cache.
#pragma once
#include "scheduler.cuh"
#include "sync.cuh"
#include "trace.cuh"

template <int kOp>
struct OwnTask;

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
  OwnTask<kOp>::run(args.ops[kOp], task, memory);
  if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kComputed);
  __syncthreads();
  if (threadIdx.x == 0) {
    post(args, task);
    trace_stamp(args, scheduler.next, kStored);
  }
  return true;
}
