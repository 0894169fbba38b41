// Programmatic dependent launch: a launch begins while the one before it in the stream ends. Every kernel calls
// `begin_launch` before all else, but the warp-specialised ones, whose roles wait each for itself (producers_wgmma.cuh); in
// a plain launch it does nothing.
//
// Waits. Each thread executes griddepcontrol.wait, or waits for one that has, before it touches anything
// that an earlier launch writes or still reads. That is: draw counter and signals, inputs and intermediates, its own
// outputs. (A draw among the draws of the launch before would give a wrong epoch.) The wait ends when the launch before
// has ended. That launch ended after its own wait. So by induction all earlier launches of the stream have ended. No
// launch overwrites an intermediate that an earlier one reads, and all of their stores are visible, however many
// launches the hardware has let in.
//
// Before the wait a CTA reads only the plan, which no launch writes, and prefetches weights into the L2. A prefetch
// brings nothing into registers or shared memory, and the L2 is where writes become visible, so even weights that the
// launch before writes are read right afterwards. The first task of a static queue or of a dealt wave is known. The
// ticket that a CTA will draw is not known. So the CTA prefetches for the ticket of its own number. Draws go to CTAs in
// about that order, and a wrong guess only brings another CTA's weights.
//
// Liveness. The measured build lets its successor in once all of its CTAs have started or ended, a guarded build once all
// of them have passed their wait or ended. So no CTA of the successor takes an SM from one that has still to start. The
// launches before wait for no later one. As soon as they have left, a grid that fits the GPU is as co-resident as in a
// cooperative launch. A successor's CTA that is resident meanwhile sleeps in griddepcontrol.wait, holds no ticket and no
// lock, and is waited for by no one.
//
// Kernels of others. One after ours may read, before its own wait, what the launch before ours wrote: PyTorch's compiler
// makes such kernels. Once a guarded build lets it in, that launch has ended, and its stores are visible. The measured
// build is only for our launches, which read nothing before their wait but the plan and weights.
#pragma once
#include "launch_args.cuh"

constexpr int kLineElements = 64;  // of an L2 line of 128 bytes

// The columns of the ring's first filling, of all rows that the task reads: of a gate and an up projection, both. Steps in
// a row are one run of columns; of others each is a run of its own.
template <int kOp>
__device__ void prefetch_weights(const LaunchArgs& args, const Task& task) {
  constexpr OpConfig kConfig = kOps[kOp];
  const OpArgs& op = args.ops[kOp];
  const int row0 = task.tile_n * kConfig.tile_n;
  const Steps steps = steps_of<kOp>(args.plan, op, task);
  const int num_steps = min(kNumStages - 1, steps.count), first_k = steps.first * kConfig.tile_k;
  const int num_rows = min(kConfig.tile_n, op.n - row0);
  const int num_runs = steps.stride == 1 ? 1 : num_steps;
  const int run_lines = ((steps.stride == 1 ? num_steps : 1) * kConfig.tile_k + kLineElements - 1) / kLineElements;
  const int num_lines = num_runs * run_lines;
#pragma unroll 1
  for (int i = threadIdx.x; i < (kConfig.gated ? 2 : 1) * num_rows * num_lines; i += kNumThreads) {
    const int below = i / num_lines, line = i % num_lines, run = kConfig.num_parts > 1 ? line / run_lines : 0;
    const int column = first_k + run * steps.stride * kConfig.tile_k + (line - run * run_lines) * kLineElements;
    const int row = row0 + (below < num_rows ? below : op.n + below - num_rows);
    if (column < op.k) prefetch_l2(op.w + static_cast<long long>(row) * op.k + column);
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

// The kernel's first act.
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
