// The next tasks of a warp-specialised CTA: drawn by one thread, read by all roles.
//
// The feeder is the thread that loads the weights. It draws a task when at most a ring of weights remains to be
// requested for the previous task. (With ping-pong and no cluster, it draws when none remains.) It passes the task on
// after these weights. So a CTA holds at most one task beyond those whose weights are in its ring. If the first wave is
// dealt, the first task is known, like a queue's, and the draws begin after it. The next task of a static queue is
// known. It is read as soon as the first weights of the current task have been requested, since a read waits for
// everything that the CTA has requested before. The other roles read a task from a slot in shared memory. Every role
// processes its tasks in the order in which they were taken. That keeps liveness for tickets. The CTA with the lowest
// unfinished ticket has no lower one left. The ticket's weights precede those of higher tickets in the ring. Its inputs
// depend only on lower tickets. No role of the CTA waits for a higher one. For static queues the order is the queue's,
// as the proof assumes.
//
// With ping-pong two teams of the math warpgroups alternate: a slot with an even number has a task of the first team,
// the next one a task of the other. Both read every slot, since the team that skips a task must know how many stages to
// skip. All other roles work as before. A team reaches its task after it has stored its last one, two tasks earlier. It
// begins when the other team has issued the products of the task in between. That team waits for nothing later.
// Consider the lowest unfinished task in the CTA. All stages before it are released, and both teams have finished all
// earlier tasks. So it ends when its waits do, which delay no lower task. A slot is free when its task and all earlier
// ones are posted, and the other team has skipped it.
//
// In a cluster all CTAs process the same tasks. Each reads its cluster's static queue separately. A ticket is drawn
// once for the cluster, by the feeder of its first CTA, the leader; the leader writes the slots of all CTAs and arrives
// at their `full`. The feeders of the others read the slot like every other role, and all roles of all CTAs release it
// at the leader's `empty`. Slots are written and read by plain accesses, so these arrivals and waits have the cluster's
// scope; there is one of each per task.
#pragma once
#include "draws.cuh"
#include "ring.cuh"

constexpr int kFeedSlots = 4;

struct FeedSlot {
  Task task;
  int index;  // in the plan; below 0: there is no more
  u32 epoch;  // epoch of the launch; if the first task is known, the inputs' warp determines it
  int is_stored;  // for the team: whether the tile is complete; false for a part if another part will be the last
  int zero[5];
};
static_assert(sizeof(FeedSlot) == 64, "the host computes the size of shared memory from this");
constexpr int kFeedWords = 10;  // words of a slot that are used

using FeedRing = Ring<kFeedSlots, sizeof(FeedSlot)>;

__device__ __forceinline__ FeedSlot* feed_slot(unsigned char* memory, const FeedRing::Place& place) {
  return reinterpret_cast<FeedSlot*>(memory) + place.slot();
}

// The threads that release a slot: in the leader's CTA the inputs' warp, the thread that posts, and the warps of a team
// that skips it; in the other CTAs also their feeder. If there are a helper warp or warps that read in band, these also
// release it in each CTA.
constexpr int kReadersOfFeeder = (kHasLateWaits ? 3 : 2) + kReaderWarps + (kNumTeams - 1) * kTeamWarps;
constexpr int kReadersOfOthers = kReadersOfFeeder + 1;
static_assert(kFeedSlots % kNumTeams == 0, "each team's tasks have separate slots");

__device__ __forceinline__ bool is_fed_by_leader(const LaunchArgs& args) {
  return kClusterSize > 1 && args.plan.assignment != kStaticQueues;
}

// Arrivals that free a slot.
__device__ __forceinline__ u32 feed_readers(const LaunchArgs& args) {
  return kReadersOfFeeder + (is_fed_by_leader(args) ? kReadersOfOthers * (kClusterSize - 1) : 0);
}

// Called by a reader: waits until the slot holds a task.
__device__ __forceinline__ void wait_fed(const FeedRing& feed, const FeedRing::Place& place) {
  if constexpr (kClusterSize == 1) {
    feed.wait_filled(place);
  } else {
    mbarrier_wait_acquire_cluster(feed.full(place), place.parity());
  }
}

__device__ __forceinline__ void release_fed(const LaunchArgs& args, const FeedRing& feed, const FeedRing::Place& place) {
  if (is_fed_by_leader(args)) {
    mbarrier_arrive_release_cluster(address_in_cta(feed.empty(place), 0));
  } else {
    feed.release(place);
  }
}

// Called by the feeder: writes the slot's task, for all roles of its CTA; the leader's feeder does so for those of all
// CTAs.
__device__ __forceinline__ void feed_task(const LaunchArgs& args, const FeedRing& feed, const FeedRing::Place& place,
                                          unsigned char* memory, const FeedSlot& filled) {
  if constexpr (kClusterSize == 1) {
    feed.wait_free(place);
  } else {
    mbarrier_wait_acquire_cluster(feed.empty(place), place.parity() ^ 1);
  }
  FeedSlot* slot = feed_slot(memory, place);
  slot->task = task_of_rank(filled.task, rank_in_cluster());
  slot->index = filled.index;
  slot->epoch = filled.epoch;
  mbarrier_arrive(feed.full(place));
  if (!is_fed_by_leader(args)) return;
  for (int rank = 1; rank < kClusterSize; ++rank) {
    FeedSlot other = filled;
    other.task = task_of_rank(filled.task, rank);
    const u32* words = reinterpret_cast<const u32*>(&other);
    const u32 there = address_in_cta(feed.stage(place), rank);
#pragma unroll
    for (int i = 0; i < kFeedWords; ++i) store_in_cluster(there + 4 * i, words[i]);
    mbarrier_arrive_release_cluster(address_in_cta(feed.full(place), rank));
  }
}

// Used by the feeder: the CTA's next task in the plan.
struct TaskSource {
  static constexpr u64 kUnknown = ~0ull;

  const LaunchArgs& args;
  int next, end;
  Draws draws;  // the launch is not known before the first draw

  // Draws the first task if it is not known; if the plan is static, reads its queue.
  __device__ explicit TaskSource(const LaunchArgs& launch_args) : args(launch_args), draws{} {
    if (is_static()) {
      const int* queue = args.words + args.plan.queue_offset + cluster_number();
      next = __ldg(queue);
      end = __ldg(queue + 1);
    } else if (knows_first_task(args)) {
      next = cluster_number();
      end = args.plan.num_tasks;
      draws = {kUnknown};
    } else {
      next = draws.start(args);
      end = args.plan.num_tasks;
    }
  }

  __device__ bool is_static() const { return args.plan.assignment == kStaticQueues; }
  __device__ bool has_task() const { return next < end; }
  __device__ bool has_drawn() const { return draws.launch != kUnknown; }
  __device__ u32 epoch() const { return static_cast<u32>(draws.launch); }

  __device__ Task task() const {
    return load_task(args.words + args.plan.task_offset + kTaskWords * next);
  }

  // Requests the next draw; `take` waits for the result.
  __device__ u64 draw() const { return draws.draw(args); }

  // Takes the drawn task, whose words will be read soon.
  __device__ void take(u64 drawn) {
    if (!has_drawn()) draws.launch = draws.launch_of(args, drawn);
    next = draws.task_of(args, drawn);
    if (has_task()) prefetch_l2(args.words + args.plan.task_offset + kTaskWords * next);
  }
};
