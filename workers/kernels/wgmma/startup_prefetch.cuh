// Prefetches weights beyond the ring into the L2 while a launch begins.
//
// One thread fills the ring before it has read a word of the plan. Then it waits until stages are consumed: a round
// trip for the inputs, and in a dependent launch, also for the rest of the previous launch. The memory would be idle
// while the ring is full. So a warp of the producers' warpgroup that is otherwise idle prefetches the next
// kStartupPrefetch k-steps of the first task's weights, as many as it has. It requests the same boxes as the later
// loads, with the same cache hint, but only into the L2. Each CTA of a cluster prefetches its own slices.
//
// Layout. None: a prefetch uses no shared memory and no barrier.
// Waits. This warp waits for `requested`. The weights' thread arrives there once per launch, after it has requested the
// known weights of the first task. So the boxes follow the ring's in the copy engine, and that thread's only cost is an
// arrival. There is only one phase, so its parity is unambiguous. Nothing waits for this warp, and a CTA may end before
// its prefetches do.
// Memory order. Weights depend on no producer, and writes become visible in the L2, so later loads read current values.
// A line that was evicted or has not arrived yet only costs time.
//
// Weights that the plan holds back until a task's first waits are over (a run-ahead below 100) are not prefetched: they
// would compete for memory bandwidth with the loads for which they are held back.
#pragma once
#include "shared_wgmma.cuh"

// Called by one thread; `first` is the CTA's own tile of the cluster's task.
template <int kOp = 0>
__device__ inline void prefetch_steps(const OperandArgs& args, const Task& first) {
  if constexpr (kOp < kNumOps) {
    if (first.op != kOp) return prefetch_steps<kOp + 1>(args, first);
    if constexpr (!is_own_task(kOp)) {
      const ToL2 to{cache_policy<kWeightHint>()};
      const Steps steps = steps_of<kOp>(args.base.plan, args.base.ops[kOp], first);
      const int end = min(steps.count, kNumStages + kStartupPrefetch);
#pragma unroll 1
      for (int step = kNumStages; step < end; ++step)
        request_weight_boxes<kOp>(to, &args.weight_maps[map_of(kOp)], steps[step], first.tile_n, args.base.ops[kOp].n);
    }
  }
}

__device__ inline void prefetch_at_startup(const OperandArgs& args, const Shared& shared) {
  if (!knows_first_task(args.base)) return;
  const FirstTask& known = args.first_tasks[cluster_number()];
  if (known.op < 0 || (known.waits && args.base.plan.held_stages > 0)) return;
  mbarrier_wait(shared_address(&shared.flags->requested), 0);
  prefetch_steps(args, as_task(known));
}
