// The helper warp, which prepares the epilogue's inputs while the math warps multiply: it performs the waits before the
// epilogue, and computes the row factors of a norm. Only kernels of chains have it; in others this warp only prefetches
// at the start.
//
// Waits. The inputs' warp arrives at `waited` when all waits before k-steps are over, and stores which wait is next.
// The helper warp waits for that, and then performs the task's waits before the epilogue. It adds up the squares of the
// tile's rows, whose round trips to the L2 are hidden, and arrives at `ready`. The math warps wait for `ready` after
// their last product. So an epilogue's wait delays neither inputs nor weights of the following tasks.
//
// Phases. Both are counted per slot: one phase for each task, whatever its op. The slot becomes free for another task
// only after this warp has arrived at `ready` and released it. So a team that skips a `ready`, because its part is not
// the last of its tile, is never two phases behind; neither is this warp, which waits for each `waited`.
// Liveness. The waits of a task are performed in order: first those of its k-steps, then these. This warp processes the
// tasks in the order in which the CTA took them, and no earlier task waits for a later one. The post of a task comes
// after its epilogue, and therefore after all of its waits. Memory order. The inputs' warp has acquired what it waited
// for; its arrival and this warp's wait pass that on at CTA scope, and so do this warp's arrival and the math warps'
// wait. The factors in shared memory are written before that arrival. Those of a slot's next task are written after the
// release of the slot by the thread that posts.
#pragma once
#include "norm.cuh"
#include "shared_wgmma.cuh"

// The factors of a task's rows, if its op is normed.
template <int kOp = 0>
__device__ __forceinline__ void load_task_factors(const LaunchArgs& args, const Task& task, u32 factors) {
  if constexpr (kOp < kNumOps) {
    if (task.op != kOp) return load_task_factors<kOp + 1>(args, task, factors);
    constexpr int kRows = kOps[kOp].tile_m, kLoadsInFlight = kNumMathGroups == 1 ? 16 : 4;
    if constexpr (kChainOps[kOp].norm) load_factors<kRows, kLoadsInFlight>(args, kOp, task.tile_m * kRows, factors);
  }
}

// A residual that no op of the launch writes comes from DRAM, after all weights that the SM has already requested. It
// is prefetched into the L2 while the tile is multiplied. Writes become visible in the L2, so later loads read current
// values.
template <int kOp = 0>
__device__ __forceinline__ void prefetch_residual(const LaunchArgs& args, const Task& task) {
  if constexpr (kOp < kNumOps) {
    if (task.op != kOp) return prefetch_residual<kOp + 1>(args, task);
    constexpr OpConfig kConfig = kOps[kOp];
    if constexpr (Residual<kOp>::is_there() && !kChainOps[kOp].waits) {
      constexpr int kLine = 64;  // elements
      constexpr int kLines = (kConfig.tile_n + kLine - 1) / kLine + (kConfig.tile_n % kLine != 0);
      const OpArgs& op = args.ops[kOp];
      const int column0 = task.tile_n * kConfig.tile_n, end = min(column0 + kConfig.tile_n, op.n);
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x) % 32; i < kConfig.tile_m * kLines; i += 32) {
        const int row = task.tile_m * kConfig.tile_m + i / kLines, column = min(column0 + i % kLines * kLine, end - 1);
        if (row < op.m && column0 < end) prefetch_l2(Residual<kOp>::begin(op) + static_cast<long long>(row) * op.n + column);
      }
    }
  }
}

// Called by all lanes of one warp.
__device__ inline void prepare_epilogues(const LaunchArgs& args, const Shared& shared) {
  wait_for_prerequisites();
  FeedRing::Place feed;
  for (;; feed.advance()) {
    wait_fed(shared.feed, feed);
    const FeedSlot& slot = *feed_slot(shared.feed_memory, feed);
    const int index = slot.index;
    if (index < 0) return;
    const Task task = slot.task;
    prefetch_residual(args, task);
    mbarrier_wait(shared.beside.waited(feed), feed.parity());
    const int next = *shared.beside.next_wait(feed);
    PendingWaits pending{next, next < task.wait_end ? 0 : kNoStep};
    if (!wait_before(args, task, index, shared.flags->epoch, kEpilogueStep, pending)) {
      if (threadIdx.x % 32 == 0) *const_cast<volatile int*>(&shared.flags->aborted) = 1;
    }
    load_task_factors(args, task, shared.beside.factors(feed));
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      mbarrier_arrive(shared.beside.ready(feed));
      release_fed(args, shared.feed, feed);
    }
  }
}
