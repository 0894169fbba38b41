// Waits of an attention launch, all of them bounded, and what comes of one that has expired.
//
// Which waits. Roles of a CTA wait for each other at mbarriers, CTAs of a cluster for each other's sums. A length that changes
// while a launch runs may be read as two values, by two CTAs of a cluster or by two warps that request. Then one of them waits
// for what the other one does not bring. No wait is for another cluster.
//
// Abort. A wait that outlasts the limit leaves a record in the workspace, if it is the first one, and a word in shared memory.
// Other waits of the CTA see the word once they have to wait. A warp leaves its tasks when all of its lanes agree, warps that meet
// at a named barrier when all of them do. Who requests stays until all that it has asked for is there. So nothing is written to
// shared memory that belongs to another CTA by then.
//
// NaN. A CTA that has given up ends by filling the whole result with NaN. It has not arrived for the task at which it gave up,
// so nobody adds that slot up. So a row that the launch could not finish is NaN. A row that another CTA finishes may be right.
// Counters of arrivals no longer fit. So each later launch finds the record and leaves nothing but NaN, until the host has cleared
// counters and record.
//
// Clusters. A CTA that sees another length than its neighbour sends to it what it does not wait for. So no CTA of a cluster ends
// before all have come to their ends.
//
// Not bounded. Barriers of the CTA and of the cluster are for what the others come to in bounded time. The wait for the launches
// before is theirs. A copy that never arrives ends the wait for it, not the copy.
#pragma once
#include "ring_attention.cuh"

// One thread: the first one leaves the record, all of the CTA's threads find the word.
__device__ inline void give_up(const AttentionArgs& args, const Ring& ring, Waited waited, int number, u32 seen, u32 expected) {
  store_shared_word(ring.stopped(), 1);
  if (compare_and_swap_relaxed_gpu(&args.abort->raised, 0, 1) != 0) return;
  args.abort->task = number;
  args.abort->waited = waited;
  args.abort->warp = seen;
  args.abort->parity = expected;
  args.abort->cta = static_cast<int>(blockIdx.x);
}

// Until the phase of this parity is over; false if the CTA has given up. `number`: of the CTA's task.
template <bool kInCluster = false>
__device__ __forceinline__ bool wait_phase(const AttentionArgs& args, const Ring& ring, u32 barrier, u32 parity, Waited waited,
                                           int number) {
  const auto is_there = [=] { return kInCluster ? is_over_in_cluster(barrier, parity) : is_over(barrier, parity); };
  if (is_there()) return true;
  const long long start = clock64();
  while (!is_there()) {
    if constexpr (kBoundsWaits) {
      if (load_shared_word(ring.stopped()) != 0) return false;
      if (clock64() - start <= args.spin_limit_cycles) continue;
      give_up(args, ring, waited, number, threadIdx.x / 32, parity);
      return false;
    }
  }
  return true;
}

// All lanes of a warp meet: whether it is so for each of them.
__device__ __forceinline__ bool all_agree(bool flag) {
  if constexpr (kBoundsWaits) return __all_sync(0xFFFFFFFFu, flag);
  __syncwarp();
  return true;
}

// One thread: until the phase is over, or so many cycles behind `start`, whether the CTA has given up or not.
__device__ __forceinline__ void outlast(u32 barrier, u32 parity, long long start, long long limit_cycles) {
  while (!is_over(barrier, parity) && clock64() - start <= limit_cycles) {
  }
}

// All threads of the CTA, as the last that they do: `has_met` says whether a thread has waited for its cluster to begin.
__device__ inline void end_cta(const AttentionArgs& args, const Ring& ring, bool has_met) {
  __syncthreads();
  if (load_shared_word(ring.stopped()) != 0) {
    const long long rows = static_cast<long long>(args.sequences) * args.new_tokens * args.num_kv_heads * args.query_heads;
    u32* words = reinterpret_cast<u32*>(args.out);
    constexpr u32 kTwoNans = 0x7FFF7FFF;  // in fp16 and in bf16
    for (long long i = threadIdx.x; i < rows * (kHeadDim / 2); i += kAttentionThreads) words[i] = kTwoNans;
  }
  if constexpr (kCluster > 1) {
    if (!has_met) cluster_wait();
    cluster_arrive();
    cluster_wait();
  }
}

// All lanes of a warp: the CTA's task of that number, when it is at hand; false, for all alike, if the CTA has given up.
__device__ __forceinline__ bool at_hand(const AttentionArgs& args, const Ring& ring, int number, TaskInHand& hand) {
  const int slot = number % kTaskSlots;
  if (!all_agree(wait_phase(args, ring, ring.task_full(slot), number / kTaskSlots & 1, kForTask, number))) return false;
  const uint4 words = load_shared_vector(ring.task(slot));
  hand = {{static_cast<int>(words.x), static_cast<int>(words.y)}, static_cast<int>(words.z), static_cast<int>(words.w)};
  return true;
}

// The same warp has read what it needs of the task's slot.
__device__ __forceinline__ void hand_back(const Ring& ring, int number) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.task_empty(number % kTaskSlots));
}

// Of the threads that request, whether they bring tasks and queries too. Who does not, walks the same queue, and may be many
// tasks without tiles behind.
__device__ __forceinline__ bool brings_tasks() { return kRequestWarps == 1 || threadIdx.x < kRequester + 32; }

// Who requests the ring's `place`-th tile, of the CTA's task of that number: until its stage is free; false if the CTA has given up.
__device__ __forceinline__ bool wait_until_free(const AttentionArgs& args, const Ring& ring, int place, int number) {
  return place < kStages ||
         wait_phase(args, ring, ring.empty(place % kStages), (place / kStages & 1) ^ 1, kForStage, number);
}
