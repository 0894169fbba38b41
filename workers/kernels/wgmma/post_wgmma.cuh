// The warp that posts, while the math warps are at their next task.
//
// A post waits until all of its tile's stores are there, a round trip to the L2. So one thread of a warp of its own posts.
// Each math warpgroup, when it has stored its rows, arrives at the mbarrier of its task's feed slot and continues; those of
// a team need not be at a task's end together.
//
// Phases. A slot has a task for each of its phases, so its mbarrier's parity is the slot's. The thread that posts frees the
// slot after its post, so no one can arrive there for a later task before it has seen this one's phase.
// Memory order. An arrival releases what its warpgroup has stored at CTA scope. (The warpgroup's barrier orders these
// stores before it.) The wait of the posting thread acquires that, and its red.release.gpu is cumulative over both, as
// in sync.cuh. Liveness. Tiles are posted in the order in which the CTA took their tasks, though with ping-pong a later
// one may be stored earlier. No task waits in a CTA for a later one, so no post of a task that can end comes after
// one that cannot. Inside a CTA only the feeder waits for posts, when it needs a slot: for that of the task a round of
// slots before.
#pragma once
#include "shared_wgmma.cuh"
#ifdef TUNER_GUARDED
#include "launch_guard.cuh"
#endif

// A math warpgroup's, all threads: it has stored its rows of the slot's tile; or this was a part, and another will be the
// last.
__device__ __forceinline__ void tell_stored(const Shared& shared, const FeedRing::Place& feed, bool is_stored) {
  if (team_thread() == 0) feed_slot(shared.feed_memory, feed)->is_stored = is_stored;
  barrier_sync<128>(kWarpgroupBarriers + thread_number() / 128);
  if (thread_number() % 128 == 0) mbarrier_arrive(shared.stored(feed));
}

// The posting thread's: every tile of the CTA, task by task.
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
