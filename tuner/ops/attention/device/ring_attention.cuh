// The ring of K and V, and the current tasks with their queries. They are loaded by the warps in request_attention.cuh.
//
// Layout. A stage is a tile of K and the same tokens' tile of V. A tile is a sequence of boxes, one per copy; a box
// holds the first 128-byte line of every token, then the second, and so on, in the 128-byte swizzle. After the stages
// come the mbarriers, then kTaskSlots current tasks, then each task's queries: one row per column, with 16 bytes
// between rows, so that 8 rows are in different banks. The memory of merge_attention.cuh follows.
//
// Waits. A warp iterates over the queue. For each task, it requests the queries, publishes the task, and requests its
// tiles, as far as there is room. So a task is available before the previous one ends. K and V of a stage have separate
// barriers, so that scores begin while V is in flight. Page numbers are in the lanes' registers, a batch ahead.
// The warps of the team that multiplies a tile release its stage. All warps that multiply or finish tasks release a
// task's slot. Each warp arrives once.
#pragma once
#include "context_attention.cuh"

constexpr int kTaskSlots = 3;
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kBarrierBytes = 512;
constexpr int kTaskBarriers = 24 * kStages;                      // two per slot
constexpr int kSumsBarriers = kTaskBarriers + 16 * kTaskSlots;   // full, empty
constexpr int kReceivedBarriers = kSumsBarriers + 16;            // two
static_assert(kReceivedBarriers + 16 <= kBarrierBytes, "all barriers fit in the reserved space");
constexpr int kTasksOffset = kRingBytes + kBarrierBytes;
// The number of threads that arrive when a tile of K or of V, or a task, is available: one thread that expects bytes,
// or each lane after its copies, plus the lane that publishes the task.
constexpr int kFullArrivals = kByCopyEngine ? 1 : 32, kTaskArrivals = kByCopyEngine ? 1 : 33;
constexpr int kQueryRowBytes = 2 * kHeadDim + 16;
constexpr int kQueriesOffset = kTasksOffset + 16 * kTaskSlots;
constexpr int kQueriesBytes = kLiveColumns * kQueryRowBytes;  // per slot
constexpr int kQueriesEnd = kQueriesOffset + kTaskSlots * kQueriesBytes;
constexpr int kSumStride = kHeadDim + 4;  // floats: lanes of a store are in different banks
constexpr int kVectors = kHeadDim / 4;    // items per column
constexpr int kSumsOffset = (kQueriesEnd + 15) / 16 * 16;
constexpr int kStatsOffset = kSumsOffset + 4 * kMathWarps * kLiveColumns * kSumStride;
constexpr int kReceivedOffset = kStatsOffset + (8 * kMathWarps * kLiveColumns + 15) / 16 * 16;
constexpr int kShare = (kLiveColumns * kVectors + kCluster - 1) / kCluster;  // maximum items per CTA
constexpr int kFromOneBytes = 16 * kShare + 8 * kLiveColumns + kLiveColumns % 2 * 8;
constexpr int kReceivedBytes = kCluster == 1 ? 0 : kCluster * kFromOneBytes;  // per buffer
constexpr int kFlagOffset = kReceivedOffset + 2 * kReceivedBytes;
constexpr int kStoppedOffset = kFlagOffset + 4;
constexpr int kAttentionSmem = kFlagOffset + 16;  // flag, and the three words of an abort
static_assert(kReceivedOffset % 16 == 0 && kFromOneBytes % 16 == 0, "received sums are aligned for loads of 16 bytes");
static_assert(kAttentionSmem <= 232448, "shared memory fits in an SM of sm_90");
constexpr int kPartialFloats = kColumns * (kHeadDim + 2 * kCluster);

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
  // Three words: whether the CTA has aborted, and why.
  __device__ __forceinline__ u32 stopped() const { return base + kStoppedOffset; }
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
    mbarrier_init(ring.task_empty(slot), kMathWarps + kFinishWarps + (kLengthsOnce ? kRequestWarps - 1 : 0));
  }
  mbarrier_init(ring.sums_full(), kMathWarps);
  mbarrier_init(ring.sums_empty(), max(kFinishWarps, 1));
  mbarrier_init(ring.received(0), 1);
  mbarrier_init(ring.received(1), 1);
  store_shared_word(ring.stopped(), 0);
  if constexpr (kByCopyEngine) fence_mbarrier_init();
}

// The address of a column's queries and results.
__device__ __forceinline__ long long column_offset(const AttentionArgs& args, const AttentionTask& task, int column) {
  const int token = column / args.query_heads, head = column % args.query_heads;
  const long long row = static_cast<long long>(task.sequence()) * args.new_tokens + token;
  return (row * args.num_kv_heads * args.query_heads + task.head() * args.query_heads + head) * kHeadDim;
}

__device__ __forceinline__ int columns_of(const AttentionArgs& args, const AttentionTask& task) {
  return min(args.num_columns() - task.block() * kColumns, kLiveColumns);
}
