// Weights beyond the ring, brought into the L2 while a launch begins.
//
// The ring holds what one thread has requested before it has read a word of the plan. Then that thread waits
// until stages are consumed: a round trip for the inputs, and in a dependent launch the rest of the launch before. When
// the ring is full meanwhile, the memory has nothing to do. So a warp of the producers' warpgroup which is idle
// otherwise prefetches the next kStartupPrefetch k-steps of the first task's weights, as many as it has. It names the
// same boxes as the loads will, with the same cache hint, but only for the L2. Each CTA of a cluster prefetches its own
// slices.
//
// Layout. None: a prefetch names no shared memory and no barrier.
// Waits. This warp waits for `requested`. The weights' thread arrives there once in a launch, when all
// that it knows of the first task is requested. So the boxes come after the ring's in the copy engine, and that
// thread does no more than an arrival for them. Its one phase is over for good, so a parity cannot mean another one.
// Nobody waits for this warp, and a CTA may end before its prefetches have.
// Memory order. Weights depend on no one, and the L2 is where writes become visible. The loads that follow read what is
// there when they come. A line that was evicted or not yet there only costs time.
//
// Weights that the plan holds back until a task's first waits are over (a run-ahead below 100) are not prefetched: they
// would take the memory from those for whom they are held back.
#pragma once
#include "shared_wgmma.cuh"

// One thread; `first` is the CTA's own, of a cluster's task.
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
