// The ring of K and V, and the tasks in hand with their queries. request_attention.cuh has the warp that brings them all.
//
// Layout. A stage is a tile of K and the same tokens' tile of V. A tile has boxes behind each other, each what one copy
// brings. A box has a line of 128 bytes of each token, then the next line of each, all under the 128-byte swizzle. Behind the stages lie the mbarriers, then kTaskSlots tasks in hand,
// then the queries of each: a row a column, 16 bytes apart from the next one, so that 8 rows lie in different banks. Then
// comes what merge_attention.cuh has.
//
// Who waits for whom. A warp walks the queue. Of a task it brings the queries, then says what the task is, then
// requests its tiles, task behind task, as far as there is room. So a task is at hand before the one before it ends. K and
// V of a stage have a barrier each, so that scores begin while V is on its way. Page numbers are in the lanes' registers, a
// batch of them ahead. The warps of the team that multiplies a
// tile hand its stage back. All that multiply or end tasks hand a task's slot back. One arrival a warp.
#pragma once
#include "context_attention.cuh"

constexpr int kTaskSlots = 3;
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kBarrierBytes = 512;
constexpr int kTaskBarriers = 24 * kStages;                      // two a slot
constexpr int kSumsBarriers = kTaskBarriers + 16 * kTaskSlots;   // full, empty
constexpr int kReceivedBarriers = kSumsBarriers + 16;            // two
static_assert(kReceivedBarriers + 16 <= kBarrierBytes, "room for all barriers");
constexpr int kTasksOffset = kRingBytes + kBarrierBytes;
// Who arrives when a tile of K or of V is there, or a task: a thread that expects bytes; or each lane, behind its copies, and
// who says what the task is.
constexpr int kFullArrivals = kByCopyEngine ? 1 : 32, kTaskArrivals = kByCopyEngine ? 1 : 33;
constexpr int kQueryRowBytes = 2 * kHeadDim + 16;
constexpr int kQueriesOffset = kTasksOffset + 16 * kTaskSlots;
constexpr int kQueriesBytes = kLiveColumns * kQueryRowBytes;  // of a slot
constexpr int kQueriesEnd = kQueriesOffset + kTaskSlots * kQueriesBytes;

struct Ring {
  u32 base;

  __device__ __forceinline__ u32 k(int stage) const { return base + stage * kStageBytes; }
  __device__ __forceinline__ u32 v(int stage) const { return k(stage) + kTileBytes; }
  __device__ __forceinline__ u32 k_full(int stage) const { return base + kRingBytes + 24 * stage; }
  __device__ __forceinline__ u32 v_full(int stage) const { return k_full(stage) + 8; }
  __device__ __forceinline__ u32 empty(int stage) const { return k_full(stage) + 16; }
  __device__ __forceinline__ u32 task_full(int slot) const { return base + kRingBytes + kTaskBarriers + 16 * slot; }
  __device__ __forceinline__ u32 task_empty(int slot) const { return task_full(slot) + 8; }
  __device__ __forceinline__ u32 sums_full() const { return base + kRingBytes + kSumsBarriers; }
  __device__ __forceinline__ u32 sums_empty() const { return sums_full() + 8; }
  __device__ __forceinline__ u32 received(int buffer) const { return base + kRingBytes + kReceivedBarriers + 8 * buffer; }
  __device__ __forceinline__ u32 task(int slot) const { return base + kTasksOffset + 16 * slot; }
  __device__ __forceinline__ u32 queries(int slot) const { return base + kQueriesOffset + kQueriesBytes * slot; }
};

__device__ inline void init_ring(const Ring& ring) {
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(ring.k_full(stage), kFullArrivals);
    mbarrier_init(ring.v_full(stage), kFullArrivals);
    mbarrier_init(ring.empty(stage), kSliceWarps);
  }
  for (int slot = 0; slot < kTaskSlots; ++slot) {
    mbarrier_init(ring.task_full(slot), kTaskArrivals);
    mbarrier_init(ring.task_empty(slot), kMathWarps + kFinishWarps);
  }
  mbarrier_init(ring.sums_full(), kMathWarps);
  mbarrier_init(ring.sums_empty(), max(kFinishWarps, 1));
  mbarrier_init(ring.received(0), 1);
  mbarrier_init(ring.received(1), 1);
  if constexpr (kByCopyEngine) fence_mbarrier_init();
}

// Where queries and results of a column lie.
__device__ __forceinline__ long long column_offset(const AttentionArgs& args, const AttentionTask& task, int column) {
  const int token = column / args.query_heads, head = column % args.query_heads;
  const long long row = static_cast<long long>(task.sequence()) * args.new_tokens + token;
  return (row * args.num_kv_heads * args.query_heads + task.head() * args.query_heads + head) * kHeadDim;
}

__device__ __forceinline__ int columns_of(const AttentionArgs& args, const AttentionTask& task) {
  return min(args.num_columns() - task.block() * kColumns, kLiveColumns);
}

// All lanes of a warp that multiplies or ends tasks: the CTA's task of that number, when it is at hand.
__device__ __forceinline__ TaskInHand at_hand(const Ring& ring, int number) {
  const int slot = number % kTaskSlots;
  wait_phase(ring.task_full(slot), number / kTaskSlots & 1);
  const uint4 words = load_shared_vector(ring.task(slot));
  return {{static_cast<int>(words.x), static_cast<int>(words.y)}, static_cast<int>(words.z), static_cast<int>(words.w)};
}

// The same warp has read what it needs of the task's slot.
__device__ __forceinline__ void hand_back(const Ring& ring, int number) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.task_empty(number % kTaskSlots));
}

// Of the threads that request, whether they bring tasks and queries too. Who does not, walks the same queue, and may be many
// tasks without tiles behind.
__device__ __forceinline__ bool brings_tasks() { return kRequestWarps == 1 || threadIdx.x < kRequester + 32; }

// Who requests the ring's `place`-th tile: until its stage is free.
__device__ __forceinline__ void wait_until_free(const Ring& ring, int place) {
  if (place >= kStages) wait_phase(ring.empty(place % kStages), (place / kStages & 1) ^ 1);
}
