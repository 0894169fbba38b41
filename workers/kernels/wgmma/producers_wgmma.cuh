// The producers: one thread feeds the CTA with tasks and streams their weights, one warp waits for signals and streams inputs.
//
// Programmatic dependent launch. Weights depend on no producer. If the plan determines the first task, its weights are
// requested before the earlier launches have ended. More of them are prefetched into the L2 (startup_prefetch.cuh).
// Tickets are drawn afterwards, since the earlier launches may still be drawing. The inputs' warp waits for these
// launches before it gets the epoch or reads anything that they may have written, and every store of the math
// warpgroups comes after inputs that this warp loaded. dependent_launch.cuh explains the rest.
#pragma once
#include "finish.cuh"
#include "mailbox.cuh"
#include "shared_wgmma.cuh"

// Registers of a thread of the producers and of two or three math warpgroups. A team that alternates with another needs
// a few more; so do producers that copy for a cluster.
constexpr bool kSparesProducers = kNumTeams == 1 || kClusterSize > 1;
constexpr int kProducerRegisters = kSparesProducers ? 56 : 40;
constexpr int kMathRegisters = kNumMathGroups == 3 ? 152 : kSparesProducers ? 224 : 232;
// The threads can only redistribute the registers of the launch, an equal share each in units of 8: an increase beyond
// that would wait forever.
static_assert(kNumMathGroups == 1 || 128 * kProducerRegisters + 128 * kNumMathGroups * kMathRegisters <=
                                         65536 / kNumThreads / 8 * 8 * kNumThreads);

// Reports that a wait has expired to all CTAs that will receive inputs requested by this CTA. The fence
// ends when the flags are in their shared memory, before any of these inputs are requested, so the warps that multiply
// them see the flag.
__device__ __forceinline__ void set_aborted(const Shared& shared) {
  shared.flags->aborted = 1;
  if constexpr (InputSharers::kCount > 1) {
    const u32 flag = shared_address(&shared.flags->aborted);
    for (int place = 0; place < InputSharers::kCount; ++place)
      store_in_cluster(address_in_cta(flag, InputSharers::rank_of(place)), 1);
    fence_acq_rel_cluster();
  }
}

// At most kWindow stages of weights are in flight at a time, so that SMs closer to the memory do not get ahead of the
// others; 0 means no limit.
struct Window {
  WeightRing::Place oldest;
  int under_way = 0;

  __device__ __forceinline__ void wait_for_oldest(const WeightRing& ring) {
    if constexpr (kWindow > 0) {
      if (under_way < kWindow) {
        ++under_way;
        return;
      }
      ring.wait_filled(oldest);
      oldest.advance();
    }
  }
};

// For a task that waits, at most kAheadWindow of the stages that fill the ring are in flight, since these requests
// delay other SMs' stores and posts, for which the task waits.
__device__ __forceinline__ void wait_for_window(const Task& task, int step, const WeightRing& ring,
                                                const WeightRing::Place& place, Window& window) {
  window.wait_for_oldest(ring);
  if constexpr (kAheadWindow > 0) {
    if (step < kNumStages && task.wait_begin != task.wait_end) ring.wait_filled(place.back(kAheadWindow));
  }
}

// Requests at most `most` stages of a task's weights, starting at the `skip`-th, as the ring has room for them.
template <int kOp = 0>
__device__ __forceinline__ void request_weights(const WgmmaArgs& args, const Task& task, int skip, int most,
                                                const WeightRing& ring, WeightRing::Place& place, Window& window,
                                                u64 policy) {
  if constexpr (kOp < kNumOps) {
    if (task.op != kOp) return request_weights<kOp + 1>(args, task, skip, most, ring, place, window, policy);
    if (skip == 0) prefetch_of_columns<kOp>(args.base.ops[kOp], task.tile_n * kOps[kOp].tile_n, kOps[kOp].tile_n);
    const Steps steps = steps_of<kOp>(args.base.plan, args.base.ops[kOp], task);
#pragma unroll 1
    for (int step = skip; step < steps.count && step < skip + most; ++step) {
      ring.wait_free(place);
      wait_for_window(task, step, ring, place, window);
      if constexpr (is_own_task(kOp)) {
        mbarrier_arrive(ring.full(place));  // it is empty: own_task_wgmma.cuh
      } else {
        request_weight_stage<kOp>(ring.stage(place), ring.full(place), &args.weight_maps[map_of(kOp)], steps[step],
                                  task.tile_n, args.base.ops[kOp], policy);
      }
      place.advance();
    }
  }
}

// The same for the stages of a task's inputs.
template <int kOp = 0>
__device__ __forceinline__ void request_inputs(const WgmmaArgs& args, const Task& task, int skip, int most,
                                               const InputRing& ring, InputRing::Place& place) {
  if constexpr (kOp < kNumOps) {
    if (task.op != kOp) return request_inputs<kOp + 1>(args, task, skip, most, ring, place);
    const u64 policy = cache_policy<kOps[kOp].input_hint>();
    const Steps steps = steps_of<kOp>(args.base.plan, args.base.ops[kOp], task);
#pragma unroll 1
    for (int step = skip; step < steps.count && step < skip + most; ++step) {
      ring.wait_free(place);
      if constexpr (is_own_task(kOp)) {
        mbarrier_arrive(ring.full(place));
      } else if (is_in_band(args.base, kOp)) {
        mbarrier_arrive(ring.full(place));  // other warps fill it, see in_band_wgmma.cuh
      } else {
        request_input_stage<kOp>(ring.stage(place), ring.full(place), &args.input_maps[map_of(kOp)], steps[step],
                                 task.tile_m, policy);
      }
      place.advance();
    }
  }
}

// The boxes of a task's stage, in either ring.
template <int kOp = 0>
__device__ __forceinline__ int num_stages_of(const WgmmaArgs& args, const Task& task) {
  if constexpr (kOp < kNumOps) {
    if (task.op != kOp) return num_stages_of<kOp + 1>(args, task);
    return steps_of<kOp>(args.base.plan, args.base.ops[kOp], task).count;
  }
  return 0;
}

constexpr int kAll = 1 << 29;  // stages

// Number of stages of a task's weights that may be requested before its first waits are over.
__device__ __forceinline__ int stages_before_ready(const WgmmaArgs& args, const Task& task) {
  const int held = args.base.plan.held_stages;
  return held > 0 && task.wait_begin != task.wait_end ? kNumStages - held : kAll;
}

// Requests stages `requested` to `end` - 1 of a task's weights; for a task that waits, the stages that
// the plan holds back follow after `wait_ready`, which returns when its first waits are over.
template <class WaitReady>
__device__ __forceinline__ void request_held_weights(const WgmmaArgs& args, const Task& task, int& requested, int end,
                                                     const WeightRing& ring, WeightRing::Place& place, Window& window,
                                                     u64 policy, const WaitReady& wait_ready) {
  const int before_ready = stages_before_ready(args, task);
  while (requested < end) {
    if (requested == before_ready) wait_ready();
    const int until = requested < before_ready ? min(before_ready, end) : end;
    request_weights(args, task, requested, until - requested, ring, place, window, policy);
    requested = until;
  }
}

// If a CTA's first task is known: requests those weights that need not wait, before any word of the plan is
// read; returns the number of stages.
__device__ __forceinline__ int request_known_weights(const WgmmaArgs& args, const Shared& shared, WeightRing::Place& place,
                                                     Window& window, u64 policy) {
#ifdef TUNER_WAITS_FIRST
  wait_for_prerequisites();
#endif
  const FirstTask& known = args.first_tasks[cluster_number()];
  if (!knows_first_task(args.base) || known.op < 0) return 0;
  const int requested = kNumStages - (known.waits ? args.base.plan.held_stages : 0);
  request_weights(args, as_task(known), 0, requested, shared.weights, place, window, policy);
  if constexpr (kStartupPrefetch > 0) mbarrier_arrive(shared_address(&shared.flags->requested));
  return requested;
}

// Called by one thread of a CTA that the cluster's leader feeds: streams the weights of its tasks. The inputs' warp may
// be several tasks ahead of it, so this thread counts these tasks; otherwise it could miss phases of `ready`.
__device__ inline void produce_weights_of_fed(const WgmmaArgs& args, const Shared& shared) {
  const u64 policy = cache_policy<kWeightHint>();
  FeedRing::Place feed;
  WeightRing::Place weight;
  Window window;
  u32 num_waiting = 0;
  int requested = request_known_weights(args, shared, weight, window, policy);
  for (;;) {
    wait_fed(shared.feed, feed);
    const FeedSlot slot = *feed_slot(shared.feed_memory, feed);
    release_fed(args.base, shared.feed, feed);
    feed.advance();
    if (slot.index < 0) return;
    num_waiting += slot.task.wait_begin != slot.task.wait_end;
    request_held_weights(args, slot.task, requested, kAll, shared.weights, weight, window, policy, [&] {
      while (*const_cast<volatile u32*>(&shared.flags->num_ready) < num_waiting) {
      }
    });
    requested = 0;
  }
}

// Called by one thread: feeds the CTA with tasks, and streams their weights; those of a task that waits run ahead of
// its first waits as far as the plan allows. Before it stops there, it has passed the task on and requested all weights
// of earlier tasks, so the inputs' warp reaches these waits. It stops at each task that waits, so it cannot miss a
// phase of `ready`.
__device__ inline void produce_weights(const WgmmaArgs& args, const Shared& shared) {
  if (is_fed_by_leader(args.base) && rank_in_cluster() != 0) return produce_weights_of_fed(args, shared);
  const u64 policy = cache_policy<kWeightHint>();
  FeedRing::Place feed;
  WeightRing::Place weight;
  Window window;
  u32 ready_parity = 0;
  int requested = request_known_weights(args, shared, weight, window, policy);
  if (!knows_first_task(args.base)) wait_for_prerequisites();
  TaskSource source(args.base);
  const auto feed_next = [&] {
    const bool more = source.has_task();
    const Task task = more ? source.task() : Task{};
    feed_task(args.base, shared.feed, feed, shared.feed_memory, {task, more ? source.next : -1, source.epoch()});
    feed.advance();
    return task_of_rank(task, rank_in_cluster());
  };
  Task next = feed_next();
  while (source.has_task()) {
    const Task own = next;
    trace_stamp(args.base, source.next, kTaken);
    const auto request_until = [&](int end) {
      request_held_weights(args, own, requested, end, shared.weights, weight, window, policy, [&] {
        mbarrier_wait(shared_address(&shared.flags->ready), ready_parity);
        ready_parity ^= 1;
      });
    };
    const auto draw = [&] {
      if (!source.has_drawn()) wait_for_prerequisites();
      return source.draw();
    };
    if (source.is_static()) {  // the next task is known: pass it on
      request_until(min(requested + 1, stages_before_ready(args, own)));
      ++source.next;
      next = feed_next();
      request_until(kAll);
    } else {
      if constexpr (kSparesProducers) {
        // At this point a ring of weights remains to be requested as slots become free, which hides the latency of the
        // draw and of the words.
        const int count = num_stages_of(args, own);
        request_until(count - kNumStages);
        const u64 drawn = draw();
        request_until(count - kNumStages / 2);
        source.take(drawn);
        request_until(kAll);
      } else {
        request_until(kAll);
        source.take(draw());
      }
      next = feed_next();
    }
    requested = 0;
  }
}

// Whether the task has no wait left that comes before a k-step.
__device__ __forceinline__ bool has_no_more(const PendingWaits& pending) {
  if constexpr (kHasLateWaits) return pending.step >= kEpilogueStep;
  return pending.step == kNoStep;
}

// Called by one thread: tells the helper warp that all waits before k-steps are over for the task in that slot. It does
// so before it requests the last inputs, since those requests wait for free slots of the ring.
__device__ __forceinline__ void tell_waited(const Shared& shared, const FeedRing::Place& feed, const PendingWaits& pending) {
  *shared.beside.next_wait(feed) = pending.next;
  mbarrier_arrive(shared.beside.waited(feed));
}

// Called once, by one thread: passes the epoch to the warps that read in band.
__device__ __forceinline__ void tell_epoch(const Shared& shared, u32 epoch) {
  shared.flags->epoch = epoch;
  mbarrier_arrive(shared_address(&shared.flags->knows_epoch));
}

// Called by one warp: waits for each task's producers, and streams its inputs, unless they are read in band; for a task
// with waits between its k-steps, up to the next wait. An expired wait is reported before the inputs of later steps are
// requested, and therefore before the math warpgroups have received all of them and check.
__device__ inline void produce_inputs(const WgmmaArgs& args, const Shared& shared) {
  wait_for_prerequisites();
#ifdef TUNER_GUARDED
  launch_dependents();
#endif
  const bool knows_first = knows_first_task(args.base);
  const bool is_leader = threadIdx.x % 32 == 0;
  FeedRing::Place feed;
  InputRing::Place input;
  int requested = 0;
  u32 epoch = 0, num_ready = 0;
  if (knows_first) {
    const FirstTask& known = args.first_tasks[cluster_number()];
    if (known.op >= 0 && !known.waits) {
      // The last stage's inputs are requested after everything else that the math warpgroups need.
      requested = min(kNumInputStages, num_stages_of(args, as_task(known)) - 1);
      if (is_leader) request_inputs(args, as_task(known), 0, requested, shared.inputs, input);
    }
    if (is_leader)
      epoch = static_cast<u32>(fetch_add_relaxed_gpu(start_counter(args.base), 1) /
                               (args.base.plan.num_ctas * kClusterSize));
    epoch = __shfl_sync(0xFFFFFFFFu, epoch, 0);
  }
  [[maybe_unused]] bool has_epoch = false;  // whether the warps that read in band have received it
  for (;;) {
    wait_fed(shared.feed, feed);
    const FeedSlot slot = *feed_slot(shared.feed_memory, feed);
    __syncwarp();
    if (is_leader) release_fed(args.base, shared.feed, feed);
    [[maybe_unused]] const FeedRing::Place own = feed;
    feed.advance();
    if (slot.index < 0) return;
    if (!knows_first) epoch = slot.epoch;
    if constexpr (kInBand) {
      if (is_leader && !has_epoch) tell_epoch(shared, epoch);
      has_epoch = true;
    }
    PendingWaits pending = all_waits(slot.task);
    bool ok = wait_for_inputs(args.base, slot.task, slot.index, epoch, 0, pending);
    if (is_leader) {
      shared.flags->epoch = epoch;
      if (slot.task.wait_begin != slot.task.wait_end) {
        mbarrier_arrive(shared_address(&shared.flags->ready));
        if constexpr (kClusterSize > 1) *const_cast<volatile u32*>(&shared.flags->num_ready) = ++num_ready;
      }
      trace_stamp(args.base, slot.index, kReady);
    }
    for (int step = requested;;) {
      if (is_leader) {
        if (!ok) set_aborted(shared);
        if constexpr (kHasLateWaits) {
          if (has_no_more(pending)) tell_waited(shared, own, pending);
        }
        request_inputs(args, slot.task, step, pending.step - step, shared.inputs, input);
      }
      __syncwarp();
      if (has_no_more(pending)) break;
      step = pending.step;
      ok = wait_for_inputs(args.base, slot.task, slot.index, epoch, step, pending);
    }
    requested = 0;
  }
}
