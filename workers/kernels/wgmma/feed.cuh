// The next tasks of a warp-specialised CTA: drawn by one thread, read by all roles.
//
// The feeder is the thread that loads the weights. It draws a task when no more than a ring of weights is left to
// request of the one before. (With ping-pong alone in its CTA it draws when none is left.) It hands the task on after
// these weights. So a CTA holds at most one task beyond those that its ring reaches into. Where the first wave is
// dealt, the first task is known as a queue's is, and the draws begin after it. What comes next in a static queue is
// known. It is read as soon as the first weights of the present task are under way, since a read waits for everything that
// the CTA has requested. The others get what they need of a task from a slot in shared memory. Every role works its
// tasks off in the order in which they were taken. That keeps liveness for tickets. The lowest unfinished ticket is
// held by a CTA that has nothing lower left to do. Its weights come before those of higher tickets in the ring. Its
// inputs depend on lower tickets only. Nobody in the CTA waits for anything of a higher one. For static queues the
// order is the queue's, as the proof assumes.
//
// With ping-pong two teams of the math warpgroups alternate: a slot of an even number is the first team's task, the
// next one the other's. Both read every slot, since the team that passes a task over must know how many stages to pass.
// All roles but the teams walk as before. A team comes to its task when it has stored its last one, two tasks before.
// It begins when the other team has issued the products of the task between. That team waits for nothing of what comes
// after. Take the lowest unfinished task in the CTA. All stages before it are released, and both teams are past what
// came before. So it ends when its waits do, which stood in the way of no lower one. A slot is free when its task is
// posted, as all before it are, and the other team has passed it.
//
// In a cluster all CTAs process the same tasks. Each reads its cluster's static queue by itself. A ticket is drawn once
// for the cluster, by the feeder of its first CTA, the leader; this one writes the slots of all CTAs and arrives at their
// `full`. The feeders of the others read the slot like every other role, and all roles of all CTAs release it at the
// leader's `empty`. Slots are written and read by plain accesses, so these arrivals and waits have the cluster's scope;
// there is one of each per task.
#pragma once
#include "draws.cuh"
#include "ring.cuh"

constexpr int kFeedSlots = 4;

struct FeedSlot {
  Task task;
  int index;  // in the plan; below 0: there is no more
  u32 epoch;  // of the launch; where the first task is known the inputs' warp draws it
  int is_stored;  // the team's: its tile is there; not so of a part of which another will be the last
  int zero[5];
};
static_assert(sizeof(FeedSlot) == 64, "the host sizes shared memory by this");
constexpr int kFeedWords = 10;  // of a slot that mean something

using FeedRing = Ring<kFeedSlots, sizeof(FeedSlot)>;

__device__ __forceinline__ FeedSlot* feed_slot(unsigned char* memory, const FeedRing::Place& place) {
  return reinterpret_cast<FeedSlot*>(memory) + place.slot();
}

// The threads that release a slot: in the leader's CTA the inputs' warp, the thread that posts, and the warps of a team that passes it
// over; in the others their feeder too. Where there is a warp beside the math warps, or are warps that read in band, they do so
// in each.
constexpr int kReadersOfFeeder = (kHasLateWaits ? 3 : 2) + kReaderWarps + (kNumTeams - 1) * kTeamWarps;
constexpr int kReadersOfOthers = kReadersOfFeeder + 1;
static_assert(kFeedSlots % kNumTeams == 0, "a team's tasks have slots of their own");

__device__ __forceinline__ bool is_fed_by_leader(const LaunchArgs& args) {
  return kClusterSize > 1 && args.plan.assignment != kStaticQueues;
}

// Arrivals that free a slot.
__device__ __forceinline__ u32 feed_readers(const LaunchArgs& args) {
  return kReadersOfFeeder + (is_fed_by_leader(args) ? kReadersOfOthers * (kClusterSize - 1) : 0);
}

// A reader's: until the slot holds a task.
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

// The feeder's: the slot's task, for all roles of its CTA; the leader's: for those of all CTAs.
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

// The feeder's: which task of the plan is the CTA's next.
struct TaskSource {
  static constexpr u64 kUnknown = ~0ull;

  const LaunchArgs& args;
  int next, end;
  Draws draws;  // the launch is not known before the first draw

  // Draws the first task, where it is not known; a static plan's queue is read.
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

  // Asks for the next task that is drawn; no one waits for the answer before `take`.
  __device__ u64 draw() const { return draws.draw(args); }

  // Takes the task that was drawn; its words are soon to be read.
  __device__ void take(u64 drawn) {
    if (!has_drawn()) draws.launch = draws.launch_of(args, drawn);
    next = draws.task_of(args, drawn);
    if (has_task()) prefetch_l2(args.words + args.plan.task_offset + kTaskWords * next);
  }
};
