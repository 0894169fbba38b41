// Signals between CTAs: post, bounded wait, abort.
//
// Memory order. A producer task stores its tile (generic proxy), the CTA barrier orders these stores before thread 0,
// whose red.release.gpu publishes them (release is cumulative over the barrier). A consumer's warp 0 polls with relaxed
// loads, then every polling lane executes fence.acq_rel.gpu, then the CTA barrier orders the other warps' reads after
// it. The consumer reads by cp.async, which belongs to the generic proxy: no proxy fence is needed.
//
// Epochs. Signals are never reset: in launch number e (from 0) a signal starts at e * posts_per_launch, so a wait is
// over when signal - e * posts_per_launch >= threshold, in wrapping 32-bit arithmetic.
//
// Abort. A wait that outlasts the limit raises the flag (the first one leaves a record) and returns false; so does a
// wait that sees the flag. Its CTA leaves the task loop. On the way out every CTA executes fence.sc and reads the flag;
// one that sees it fills all outputs with NaN. A CTA that did not see it has its stores ordered before the raiser's own
// fence.sc, hence before the raiser's NaNs: after an abort the whole output is NaN, never partly right.
#pragma once
#include "launch_args.cuh"

__device__ __forceinline__ bool has_reached(u32 seen, u32 target) { return static_cast<int>(seen - target) >= 0; }

__device__ inline void raise_abort(Workspace* workspace, int task, int signal, u32 seen, u32 expected) {
  if (compare_and_swap_relaxed_gpu(&workspace->abort.raised, 0, 1) == 0) {
    workspace->abort.task = task;
    workspace->abort.signal = signal;
    workspace->abort.seen = seen;
    workspace->abort.expected = expected;
    workspace->abort.cta = static_cast<int>(blockIdx.x);
  }
}

// One lane's bounded wait for one signal; false if the launch is aborted.
__device__ inline bool spin_until(Workspace* workspace, int signal, u32 target, int task, u32 base,
                                  long long spin_limit_cycles) {
  const u32* address = workspace->signals + signal;
  u32 seen = load_relaxed_gpu(address);
  if (has_reached(seen, target)) return true;
  const long long start = clock64();
  for (u32 polls = 1;; ++polls) {
    seen = load_relaxed_gpu(address);
    if (has_reached(seen, target)) return true;
    if (polls % 16 != 0) continue;
    if (load_relaxed_gpu(&workspace->abort.raised) != 0) return false;
    if (clock64() - start > spin_limit_cycles) {
      raise_abort(workspace, task, signal, seen - base, target - base);
      return false;
    }
  }
}

// All threads of the CTA wait for all of a task's waits; false, for all alike, if the launch is aborted.
__device__ inline bool wait_for(const LaunchArgs& args, const Task& task, int task_index, u32 epoch) {
  if (task.wait_begin == task.wait_end) return true;
  bool ok = true;
  if (threadIdx.x < 32) {
    const Wait* waits = reinterpret_cast<const Wait*>(args.words + args.plan.wait_offset);
    for (int w = task.wait_begin; w < task.wait_end && ok; ++w) {
      const Wait wait = waits[w];
      const u32 base = epoch * static_cast<u32>(wait.posts_per_launch);
      for (int s = wait.signal_begin + static_cast<int>(threadIdx.x); s < wait.signal_end && ok; s += 32) {
        ok = spin_until(args.workspace, s, base + wait.threshold, task_index, base, args.spin_limit_cycles);
      }
    }
    fence_acq_rel_gpu();
  }
  return __syncthreads_and(ok);
}

// Call after the CTA barrier that follows the tile's stores.
__device__ __forceinline__ void post(const LaunchArgs& args, const Task& task) {
  if (task.post >= 0 && threadIdx.x == 0) add_release_gpu(args.workspace->signals + task.post, 1);
}

// The CTA's last act: NaN into every output if the launch was aborted by anyone.
__device__ inline void poison_if_aborted(const LaunchArgs& args) {
  bool aborted = false;
  if (threadIdx.x == 0) {
    fence_sc_gpu();
    aborted = load_relaxed_gpu(&args.workspace->abort.raised) != 0;
  }
  if (!__syncthreads_or(aborted)) return;
  for (int op = 0; op < kNumOps; ++op) {
    const int size = args.ops[op].m * args.ops[op].n;
    for (int i = threadIdx.x; i < size; i += kNumThreads) args.ops[op].c[i] = 0x7FFF;  // a NaN in fp16 and in bf16
  }
}
