// Signals between CTAs: post, bounded wait, abort.
//
// Memory order. A producer task stores its tile (generic proxy), a barrier orders these stores before the one thread
// that posts, whose red.release.gpu publishes them (release is cumulative over the barrier). It is the CTA's barrier,
// and thread 0; in the warp-specialised engine, a separate warp posts (post_wgmma.cuh). A consumer's warp polls with
// relaxed loads; a lane whose wait is over loads the signal once more with ld.acquire.gpu, and the barrier after the
// waits orders the other threads' reads after it. A fence instead would wait for everything that the CTA has requested,
// which takes microseconds while weights are in flight. A consumer that reads by cp.async, which belongs to the generic
// proxy, needs no proxy fence; one that reads by TMA fences after the acquire (mainloop_wgmma.cuh).
//
// Steps. A wait precedes a k-step of its task, usually the first. It is over before that step's inputs are
// requested. Waits are sorted by step, so a loop over the steps needs only the next wait. A task occupies its CTA from
// its first wait to its last and posts after all of them, so for liveness they count as if all came before the task. If
// CTAs of a cluster split a tile's K, each processes its own steps. A wait comes before the first step that may read
// the awaited data, and no later than the end of the CTA's steps. The tile is posted after the sums of all CTAs have
// been combined, and therefore after all of the task's waits.
//
// Waits of kEpilogueStep come after all of these. mma and simt perform these waits after the main loop, before the
// barrier that precedes the epilogue; in wgmma, a separate warp does (beside_wgmma.cuh).
//
// Epochs. Signals are never reset: in launch number e (from 0) a signal starts at e * posts_per_launch, so a wait is
// over when signal - e * posts_per_launch >= threshold, in wrapping 32-bit arithmetic. A plan has at most 2^24 of
// anything. So neither a threshold nor the posts of a launch reach 2^31, even if multiplied by the number of CTAs of a
// cluster, or of posts of parts that store shares, at most twelve.
//
// Abort. A wait that exceeds the limit sets the flag (the first one also writes a record) and returns false; so does a
// wait that sees the flag. Its CTA leaves the task loop. On the way out every CTA executes fence.sc and reads the flag;
// one that sees it fills all outputs with NaN. The stores of a CTA that did not see it are ordered before the fence.sc
// of the CTA that set it, and therefore before that CTA's NaNs: after an abort the whole output is NaN, never partly
// valid.
//
// Limits. Only waits for signals and the start gate have this limit. All other waits have none: barriers of the CTA and
// of the cluster, mbarriers, groups of copies, the wait for the previous launch. They wait for other roles of the CTA
// or of its cluster, which continue after a wait has expired. In mma and simt all threads leave the task loop together.
// In wgmma every role continues to the end of its tasks, with NaN in place of missing data. So these waits end, unless
// a copy never arrives or the kernel is faulty. Then the host kills the process at its deadline.
#pragma once
#include "launch_args.cuh"
#ifdef TUNER_GUARDED
#include "host_record.cuh"
#endif

__device__ __forceinline__ bool has_reached(u32 seen, u32 target) { return static_cast<int>(seen - target) >= 0; }

__device__ inline void raise_abort(Workspace* workspace, int task, int signal, u32 seen, u32 expected) {
  if (compare_and_swap_relaxed_gpu(&workspace->abort.raised, 0, 1) == 0) {
    workspace->abort.task = task;
    workspace->abort.signal = signal;
    workspace->abort.seen = seen;
    workspace->abort.expected = expected;
    workspace->abort.cta = static_cast<int>(blockIdx.x);
#ifdef TUNER_GUARDED
    tell_host(workspace);
#endif
  }
}

// One lane's bounded wait for one signal; false if the launch is aborted.
__device__ inline bool spin_until(Workspace* workspace, int signal, u32 target, int task, u32 base,
                                  long long spin_limit_cycles) {
  const u32* address = workspace->signals + signal;
  u32 seen = load_acquire_gpu(address);
  if (has_reached(seen, target)) return true;
  const long long start = clock64();
  for (u32 polls = 1;; ++polls) {
    seen = load_relaxed_gpu(address);
    if (has_reached(seen, target)) {
      load_acquire_gpu(address);
      return true;
    }
    if (polls % 16 != 0) continue;
    if (load_relaxed_gpu(&workspace->abort.raised) != 0) return false;
    if (clock64() - start > spin_limit_cycles) {
      raise_abort(workspace, task, signal, seen - base, target - base);
      return false;
    }
  }
}

constexpr int kNoStep = 1 << 29;  // greater than any k-step

// A task's progress through its waits: the first wait that is not known to be over, and the k-step that it precedes.
struct PendingWaits {
  int next, step;
};

// The progress of a task that has just been taken.
__device__ __forceinline__ PendingWaits all_waits(const Task& task) {
  return {task.wait_begin, task.wait_begin == task.wait_end ? kNoStep : 0};
}

// The value of a signal when a launch begins, and when the wait is over. For a post of the plan, each CTA of a cluster
// posts once; if parts store shares of a tile, several posts are one post of the plan.
__device__ constexpr int posts_of_one() { return kClusterSize * posts_of_tile(); }
__device__ __forceinline__ u32 posts_before(const Wait& wait, u32 epoch) {
  return epoch * static_cast<u32>(wait.posts_per_launch * posts_of_one());
}
__device__ __forceinline__ u32 posts_wanted(const Wait& wait, u32 epoch) {
  return posts_before(wait, epoch) + wait.threshold * posts_of_one();
}

// Waits for the signals of one wait, which all lanes of one warp share; returns false to all of them if the launch is
// aborted.
__device__ inline bool spin_on(const LaunchArgs& args, const Wait& wait, int task_index, u32 epoch) {
  const u32 base = posts_before(wait, epoch), target = posts_wanted(wait, epoch);
  bool ok = true;
  for (int s = wait.signal_begin + static_cast<int>(threadIdx.x) % 32; s < wait.signal_end && ok; s += 32)
    ok = spin_until(args.workspace, s, target, task_index, base, args.spin_limit_cycles);
  return __all_sync(0xFFFFFFFFu, ok);
}

// Called by all lanes of one warp: checks the next 32 waits, one per lane, and skips those that are already over. A
// wait for more than one signal is treated as not over, since a lane would have to check its signals in sequence.
constexpr int kFewSignals = 8;

__device__ inline void look_ahead(const LaunchArgs& args, const Wait* waits, int wait_end, u32 epoch,
                                  PendingWaits& pending) {
  const int mine = pending.next + static_cast<int>(threadIdx.x) % 32;
  int step = kNoStep;
  bool is_over = false;
  if (mine < wait_end) {
    const Wait wait = waits[mine];
    const u32 target = posts_wanted(wait, epoch);
    step = own_step(wait.before_step);
    is_over = wait.signal_end - wait.signal_begin <= kFewSignals;
    const int end = is_over ? wait.signal_end : wait.signal_begin;
#pragma unroll 4
    for (int s = wait.signal_begin; s < end; ++s) is_over &= has_reached(load_acquire_gpu(args.workspace->signals + s), target);
  }
  const u32 open = ~__ballot_sync(0xFFFFFFFFu, is_over);
  const int num_over = open == 0 ? 32 : __ffs(static_cast<int>(open)) - 1;
  pending.next += num_over;
  if (num_over < 32) {
    pending.step = __shfl_sync(0xFFFFFFFFu, step, num_over);
  } else {
    pending.step = pending.next < wait_end ? own_step(waits[pending.next].before_step) : kNoStep;
  }
}

// Called by all lanes of one warp: waits until the waits before k-step `step` and earlier ones are over. It also skips
// later waits that are already over. Returns false to all lanes if the launch is aborted.
__device__ inline bool wait_before(const LaunchArgs& args, const Task& task, int task_index, u32 epoch, int step,
                                   PendingWaits& pending) {
  const Wait* waits = reinterpret_cast<const Wait*>(args.words + args.plan.wait_offset);
  bool ok = true;
  while (ok && pending.step <= step) {
    if (pending.next < task.wait_end) {
      look_ahead(args, waits, task.wait_end, epoch, pending);
    } else {
      pending.step = kNoStep;
    }
    if (pending.step > step) break;
    ok = spin_on(args, waits[pending.next++], task_index, epoch);
  }
  if (!ok) pending.step = kNoStep;
  __syncwarp();
  return ok;
}

// Like `wait_before`, but called by all threads of the CTA before they request the inputs of k-step `step`. `pending`,
// in shared memory, says before which step to call this next; it is written before the barrier at the end. `is_first`:
// whether the task has just been taken.
__device__ inline bool wait_for(const LaunchArgs& args, const Task& task, int task_index, u32 epoch, int step, bool is_first,
                                PendingWaits& pending) {
  if (is_first && task.wait_begin == task.wait_end) {
    if (threadIdx.x == 0) pending.step = kNoStep;
    return true;
  }
  bool ok = true;
  if (threadIdx.x < 32) {
    PendingWaits mine = is_first ? all_waits(task) : pending;
    ok = wait_before(args, task, task_index, epoch, step, mine);
    if (threadIdx.x == 0) pending = mine;
  }
  return __syncthreads_and(ok);
}

// Called by one thread; all of the tile's stores must be ordered before the call.
__device__ __forceinline__ void post(const LaunchArgs& args, const Task& task) {
  u32 count = posts_of_tile();
  if constexpr (posts_of_tile() > 1) count = task.num_parts > 1 ? posts_of_tile() / task.num_parts : posts_of_tile();
  if (task.post >= 0) add_release_gpu(args.workspace->signals + task.post, count);
}

// Fills an op's output with NaN. The output of a product that computes queries, keys and values has only the queries;
// caches are left unchanged.
__device__ __forceinline__ int num_columns(const LaunchArgs& args, int op) {
  if constexpr (kRotaryOp >= 0) {
    if (op == kRotaryOp) return args.rotary_args()->heads * kRotaryHeadDim;
  }
  return args.ops[op].n;
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
    const int size = args.ops[op].m * num_columns(args, op);
    for (int i = threadIdx.x; i < size; i += kNumThreads) args.ops[op].c[i] = Element::kNan;
  }
}
