// The warp that posts while the math warps process their next task.
//
// A post waits until all of its tile's stores are complete, a round trip to the L2. So one thread of a separate warp
// posts. When a math warpgroup has stored its rows, it arrives at the mbarrier of its task's feed slot and continues;
// the warpgroups of a team need not end a task together.
//
// Phases. A slot has a task for each of its phases, so its mbarrier's parity is the slot's. The thread that posts frees
// the slot after its post, so no arrival for a later task is possible before it has seen this task's phase.
// Memory order. An arrival releases its warpgroup's stores at CTA scope. (The warpgroup's barrier orders these stores
// before it.) The wait of the posting thread acquires that, and its red.release.gpu is cumulative over both, as in
// sync.cuh. Liveness. Tiles are posted in the order in which the CTA took their tasks, though with ping-pong a later
// one may be stored earlier. In a CTA, no task waits for a later one, so the post of a task that can end never comes
// after a task that cannot. Inside a CTA, only the feeder waits for posts, when it needs a slot: for the post of the
// previous task in that slot.
#pragma once
#include "shared_wgmma.cuh"
#ifdef TUNER_GUARDED
#include "launch_guard.cuh"
#endif

// Called by all threads of a math warpgroup when it has stored its rows of the slot's tile, or when the task was a part
// and another part will be the last.
__device__ __forceinline__ void tell_stored(const Shared& shared, const FeedRing::Place& feed, bool is_stored) {
  if (team_thread() == 0) feed_slot(shared.feed_memory, feed)->is_stored = is_stored;
  barrier_sync<128>(kWarpgroupBarriers + thread_number() / 128);
  if (thread_number() % 128 == 0) mbarrier_arrive(shared.stored(feed));
}

// Called by the posting thread: posts every tile of the CTA, task by task.
__device__ inline void post_tiles(const LaunchArgs& args, const Shared& shared) {
  FeedRing::Place feed;
#ifdef TUNER_GUARDED
  wait_for_prerequisites();
  count_start(args);
#endif
  for (;; feed.advance()) {
    wait_fed(shared.feed, feed);
    const FeedSlot& slot = *feed_slot(shared.feed_memory, feed);
#ifdef TUNER_GUARDED
    if (slot.index < 0) count_end(args);
#endif
    if (slot.index < 0) return;
    mbarrier_wait(shared.stored(feed), feed.parity());
    if (slot.is_stored) post(args, slot.task);
    trace_stamp(args, slot.index, kStored);
    release_fed(args, shared.feed, feed);
  }
}
