// Programmatic dependent launch: a launch begins while the one before it in the stream ends. Every kernel calls
// `begin_launch` first, except the warp-specialised ones, in which each role waits separately (producers_wgmma.cuh); in
// a plain launch it does nothing.
//
// Waits. Each thread executes griddepcontrol.wait, or waits for a thread that has, before it accesses anything that an
// earlier launch writes or still reads: draw counter and signals, inputs and intermediates, its own outputs. (A draw
// while the previous launch still draws would give a wrong epoch.) The wait ends when the previous launch has ended,
// which was after that launch's own wait. So by induction all earlier launches of the stream have ended. No launch
// overwrites an intermediate that an earlier one reads, and all stores of earlier launches are visible, however many
// launches overlap.
//
// Before the wait a CTA reads only the plan, which no launch writes, and prefetches weights into the L2. A prefetch
// loads nothing into registers or shared memory, and writes become visible in the L2, so even weights written by the
// previous launch are read correctly afterwards. The first task of a static queue or of a dealt wave is known, but the
// ticket that a CTA will draw is not. So the CTA prefetches for the ticket with its own number. CTAs draw in about that
// order, and a wrong guess only prefetches another CTA's weights.
//
// Liveness. The measured build lets its successor start once all of its CTAs have started or ended, a guarded build
// once all of them have passed their wait or ended. So no CTA of the successor takes an SM from a CTA that has not
// started yet. Earlier launches do not wait for later ones. As soon as they have ended, a grid that fits the GPU is
// co-resident, as in a cooperative launch. A successor's CTA that is already resident sleeps in griddepcontrol.wait and
// holds no ticket and no lock, and nothing waits for it.
//
// Other programs' kernels. A kernel after ours may read, before its own wait, the output of the launch that precedes
// ours: PyTorch's compiler generates such kernels. When a guarded build lets it start, that launch has ended, and its
// stores are visible. The measured build is only for sequences of our launches, which read only the plan and weights
// before their wait.
#pragma once
#include "launch_args.cuh"
#include "stored.cuh"

constexpr int kLineElements = 64;  // elements of an L2 line of 128 bytes

// The columns that first fill the ring, for all rows that the task reads, including those of a gate and of an up
// projection. Consecutive steps are one run of columns; otherwise each step is a separate run.
template <int kOp>
__device__ void prefetch_weights(const LaunchArgs& args, const Task& task) {
  constexpr OpConfig kConfig = kOps[kOp];
  const OpArgs& op = args.ops[kOp];
  const int row0 = task.tile_n * kConfig.tile_n;
  const Steps steps = steps_of<kOp>(args.plan, op, task);
  const int num_steps = min(kNumStages - 1, steps.count), first_k = steps.first * kStoredK<kOp>;
  const int num_rows = min(kConfig.tile_n, op.n - row0);
  const int num_runs = steps.stride == 1 ? 1 : num_steps;
  const int run_lines = ((steps.stride == 1 ? num_steps : 1) * kStoredK<kOp> + kLineElements - 1) / kLineElements;
  const int num_lines = num_runs * run_lines;
#pragma unroll 1
  for (int i = threadIdx.x; i < (kConfig.gated ? 2 : 1) * num_rows * num_lines; i += kNumThreads) {
    const int below = i / num_lines, line = i % num_lines, run = kConfig.num_parts > 1 ? line / run_lines : 0;
    const int column = first_k + run * steps.stride * kStoredK<kOp> + (line - run * run_lines) * kLineElements;
    const int row = row0 + (below < num_rows ? below : op.n + below - num_rows);
    if (column < stored_columns(op.k)) prefetch_l2(op.w + static_cast<long long>(row) * stored_columns(op.k) + column);
  }
}

template <int kOp = 0>
__device__ void prefetch_weights_of(const LaunchArgs& args, const Task& task) {
  if constexpr (kOp < kNumOps) {
    if (task.op == kOp) {
      prefetch_weights<kOp>(args, task);
    } else {
      prefetch_weights_of<kOp + 1>(args, task);
    }
  }
}

// Must be called first in the kernel.
__device__ inline void begin_launch(const LaunchArgs& args) {
#ifndef TUNER_GUARDED
  launch_dependents();
#endif
  if (args.is_dependent != 0) {
    const bool is_static = args.plan.assignment == kStaticQueues;
    const int* queue = args.words + args.plan.queue_offset + blockIdx.x;
    const int first = is_static ? __ldg(queue) : static_cast<int>(blockIdx.x);
    const int end = is_static ? __ldg(queue + 1) : args.plan.num_tasks;
    if (first < end) prefetch_weights_of(args, load_task(args.words + args.plan.task_offset + kTaskWords * first));
  }
  wait_for_prerequisites();
#ifdef TUNER_GUARDED
  launch_dependents();
#endif
}
