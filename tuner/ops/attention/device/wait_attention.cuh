// Waits of an attention launch, all of them bounded, and the consequences of an expired wait.
//
// Which waits. Roles of a CTA wait for each other at mbarriers, and CTAs of a cluster for each other's sums. A length
// that changes while a launch runs may be read as two values, by two CTAs of a cluster or by two requesting warps. Then
// one of them waits for data that the other does not send. No wait is for another cluster. All readings are compared at
// the end (request_attention.cuh).
//
// Abort. The first wait that exceeds the limit writes three words to shared memory. Other waits of the
// CTA check them when they have to wait. Warps that multiply continue with incomplete data: a vote after each tile
// would delay the next one. They do not release a stage whose tile has not arrived. Warps that finish a task check the
// words after they have waited for its sums, and before they write. Other warps leave their tasks when all of their
// lanes agree; warps that synchronise at a named barrier leave when all of them agree. Warps that request data stay
// until all of it has arrived, so that nothing is written to shared memory that may belong to another CTA by then. At
// its end the CTA writes the record to the workspace, unless another CTA of the launch has done so: if each wait had
// code for this, every launch would have to fetch it.
//
// NaN. A CTA that has aborted ends by filling the whole result with NaN. It has not arrived for the task at which it
// aborted, so that slot is not added up, and a row that the launch could not finish is NaN; a row that another CTA
// finishes may be correct. Arrival counters are then inconsistent, so each later launch finds the record and writes
// only NaN, until the host has cleared counters and record.
//
// Clusters. A CTA that reads a different length than another one may send data that the other does not wait for. So no
// CTA of a cluster ends before all have finished.
//
// Not bounded. Barriers of the CTA and of the cluster are not bounded, since the other threads reach them in bounded
// time; nor is the wait for earlier launches, which are bounded themselves. If a copy never arrives, only the wait for
// it ends.
#pragma once
#include "ring_attention.cuh"

// The word that says whether a CTA has aborted: 0 if not. A launch after an abort has nothing to report.
constexpr u32 kBehindAbort = 1;
__device__ __forceinline__ u32 word_of(Waited waited, int number) {
  return 1 | (static_cast<u32>(waited) + 1) << 1 | static_cast<u32>(number) << 5;
}

// Called by one thread: records what it waited for, if it is the CTA's first to give up. `stopped` is the ring's.
__device__ __forceinline__ void give_up(u32 stopped, u32 word, u32 seen, u32 expected) {
  if (compare_and_swap_shared(stopped, 0, word) != 0) return;
  store_shared_word(stopped + 4, seen);
  store_shared_word(stopped + 8, expected);
}

// Called by one thread of a CTA that has aborted: writes the record, if it is the launch's first one.
__device__ inline void record_abort(const AttentionArgs& args, const Ring& ring, u32 word) {
  if (word == kBehindAbort || compare_and_swap_relaxed_gpu(&args.abort->raised, 0, 1) != 0) return;
  args.abort->task = static_cast<int>(word >> 5);
  args.abort->waited = static_cast<int>(word >> 1 & 0xF) - 1;
  args.abort->warp = load_shared_word(ring.stopped() + 4);
  args.abort->parity = load_shared_word(ring.stopped() + 8);
  args.abort->cta = static_cast<int>(blockIdx.x);
}

__device__ __forceinline__ bool has_given_up(const Ring& ring) {
  if constexpr (kBoundsWaits) return load_shared_word(ring.stopped()) != 0;
  return false;
}

// Number of polls of a barrier between two reads of the clock, which cost more.
constexpr u32 kPolls = 16;

// Waits until the phase with this parity is over; false if the CTA has aborted. It is not inlined, since inline code
// would take registers from the warps that multiply.
template <bool kInCluster>
__device__ __noinline__ bool wait_longer(u32 stopped, u32 barrier, u32 parity, u32 word, long long spin_limit_cycles) {
  long long start = 0;
  u32 polls = 0;
#pragma unroll 1
  do {
    if (!kBoundsWaits || ++polls % kPolls != 0) continue;
    if (load_shared_word(stopped) != 0) return false;
    if (polls == kPolls) start = clock64();
    if (clock64() - start <= spin_limit_cycles) continue;
    give_up(stopped, word, threadIdx.x / 32, parity);
    return false;
  } while (!(kInCluster ? is_over_in_cluster(barrier, parity) : is_over(barrier, parity)));
  return true;
}

// Same as the function above, but inlined if warps copy: a call would make the multiplying warps spill.
__device__ __forceinline__ bool wait_in_line(u32 stopped, u32 barrier, u32 parity, u32 word, long long spin_limit_cycles) {
  const long long start = clock64();
  while (!is_over(barrier, parity)) {
    if (!kBoundsWaits) continue;
    if (load_shared_word(stopped) != 0) return false;
    if (clock64() - start <= spin_limit_cycles) continue;
    give_up(stopped, word, threadIdx.x / 32, parity);
    return false;
  }
  return true;
}

// Checks once, then waits with one of the two functions above; `number` is that of the CTA's task.
template <bool kInCluster = false>
__device__ __forceinline__ bool wait_phase(const AttentionArgs& args, const Ring& ring, u32 barrier, u32 parity, Waited waited,
                                           int number) {
  if (kInCluster ? is_over_in_cluster(barrier, parity) : is_over(barrier, parity)) return true;
  const u32 word = word_of(waited, number);
  if constexpr (!kByCopyEngine) return wait_in_line(ring.stopped(), barrier, parity, word, args.spin_limit_cycles);
  return wait_longer<kInCluster>(ring.stopped(), barrier, parity, word, args.spin_limit_cycles);
}

// Synchronises all lanes of a warp; returns whether `flag` is set for each of them.
__device__ __forceinline__ bool all_agree(bool flag) {
  if constexpr (kBoundsWaits) return __all_sync(0xFFFFFFFFu, flag);
  __syncwarp();
  return true;
}

// Called by one thread: waits until the phase is over or `limit_cycles` have passed since `start`, even if the CTA has
// aborted.
__device__ __forceinline__ void outlast(u32 barrier, u32 parity, long long start, long long limit_cycles) {
  while (!is_over(barrier, parity) && clock64() - start <= limit_cycles) {
  }
}

// Called by all lanes of a warp: waits for the CTA's task `number`; returns false to all if the CTA has aborted.
__device__ __forceinline__ bool at_hand(const AttentionArgs& args, const Ring& ring, int number, TaskInHand& hand) {
  const int slot = number % kTaskSlots;
  if (!all_agree(wait_phase(args, ring, ring.task_full(slot), number / kTaskSlots & 1, kForTask, number))) return false;
  const uint4 words = load_shared_vector(ring.task(slot));
  hand = {{static_cast<int>(words.x), static_cast<int>(words.y)}, static_cast<int>(words.z), static_cast<int>(words.w)};
  return true;
}

// Called by the same warp when it has read what it needs from the task's slot.
__device__ __forceinline__ void hand_back(const Ring& ring, int number) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.task_empty(number % kTaskSlots));
}

// Whether the calling threads, among those that request, also load tasks and queries. A warp that does not load them
// iterates over the same queue, and may lag by many tasks without tiles.
__device__ __forceinline__ bool brings_tasks() { return kRequestWarps == 1 || is_first_warp(); }

// Called by the thread that requests the ring's `place`-th tile for the CTA's task `number`: waits until the tile's
// stage is free; false if the CTA has aborted.
__device__ __forceinline__ bool wait_until_free(const AttentionArgs& args, const Ring& ring, int place, int number) {
  return place < kStages ||
         wait_phase(args, ring, ring.empty(place % kStages), (place / kStages & 1) ^ 1, kForStage, number);
}
