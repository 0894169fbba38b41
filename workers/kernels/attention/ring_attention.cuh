// The ring of K and V, the tasks in hand with their queries, and the warp that brings them all.
//
// Layout. A stage is a tile of K and the same tokens' tile of V. A tile has boxes behind each other, each what one copy
// brings. A box has a line of 128 bytes of each token, then the next line of each, all under the 128-byte swizzle. Behind the stages lie the mbarriers, then kTaskSlots tasks in hand,
// then the queries of each: a row a column, 16 bytes apart from the next one, so that 8 rows lie in different banks. Then
// comes what merge_attention.cuh has.
//
// Who waits for whom. The last warp walks the queue. Of a task it brings the queries, then says what the task is, then
// requests its tiles, task behind task, as far as there is room. So a task is at hand before the one before it ends. K and
// V of a stage have a barrier each, so that scores begin while V is on its way. Page numbers are in the lanes' registers, a
// batch of them ahead. The warps of the team that multiplies a
// tile hand its stage back. All that multiply or end tasks hand a task's slot back. One arrival a warp.
//
// Memory order. The copy engine writes what the team reads by ldmatrix behind the barrier's phase. An arrival orders these
// reads before the copy engine's next write.
#pragma once
#include "context_attention.cuh"

constexpr int kTaskSlots = 3;
constexpr int kUnrolledBoxes = kBoxes > 4 ? 1 : kBoxes;  // in one go: more of them spill registers
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kBarrierBytes = 512;
constexpr int kTaskBarriers = 24 * kStages;                      // two a slot
constexpr int kSumsBarriers = kTaskBarriers + 16 * kTaskSlots;   // full, empty
constexpr int kReceivedBarriers = kSumsBarriers + 16;            // two
static_assert(kReceivedBarriers + 16 <= kBarrierBytes, "room for all barriers");
constexpr int kTasksOffset = kRingBytes + kBarrierBytes;
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
    mbarrier_init(ring.k_full(stage), 1);
    mbarrier_init(ring.v_full(stage), 1);
    mbarrier_init(ring.empty(stage), kSliceWarps);
  }
  for (int slot = 0; slot < kTaskSlots; ++slot) {
    mbarrier_init(ring.task_full(slot), 1);
    mbarrier_init(ring.task_empty(slot), kMathWarps + kFinishWarps);
  }
  mbarrier_init(ring.sums_full(), kMathWarps);
  mbarrier_init(ring.sums_empty(), max(kFinishWarps, 1));
  mbarrier_init(ring.received(0), 1);
  mbarrier_init(ring.received(1), 1);
  fence_mbarrier_init();
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

// All lanes of the last warp: a column's row each.
__device__ __forceinline__ void request_queries(const AttentionArgs& args, const Ring& ring, const AttentionTask& task, int slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= columns_of(args, task)) return;
  copy_bytes(ring.queries(slot) + lane * kQueryRowBytes, args.q + column_offset(args, task, task.block() * kColumns + lane),
             2 * kHeadDim, ring.task_full(slot));
}

// One thread: what the task is, and the bytes of its queries.
__device__ __forceinline__ void announce(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int slot) {
  store_shared_vector(ring.task(slot), hand.task.sequence_head, hand.task.block_span, hand.length, hand.num_tiles);
  const int bytes = hand.num_tiles < 0 ? 0 : columns_of(args, hand.task) * 2 * kHeadDim;
  mbarrier_arrive_expect(ring.task_full(slot), bytes);
}

// All lanes of a warp that multiplies or ends tasks: the CTA's task of that number, when it is at hand.
__device__ __forceinline__ TaskInHand at_hand(const Ring& ring, int number) {
  const int slot = number % kTaskSlots;
  mbarrier_wait(ring.task_full(slot), number / kTaskSlots & 1);
  const uint4 words = load_shared_vector(ring.task(slot));
  return {{static_cast<int>(words.x), static_cast<int>(words.y)}, static_cast<int>(words.z), static_cast<int>(words.w)};
}

// The same warp has read what it needs of the task's slot.
__device__ __forceinline__ void hand_back(const Ring& ring, int number) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.task_empty(number % kTaskSlots));
}

// One thread: the stage of the ring's `place`-th tile, when it is free, expects so many boxes of K and of V.
__device__ __forceinline__ void expect_tile(const Ring& ring, int place, int num_boxes) {
  const int stage = place % kStages;
  if (place >= kStages) mbarrier_wait(ring.empty(stage), (place / kStages & 1) ^ 1);
  mbarrier_arrive_expect(ring.k_full(stage), num_boxes * kBoxBytes);
  mbarrier_arrive_expect(ring.v_full(stage), num_boxes * kBoxBytes);
}

// One thread: a box of both, from that row and line of the maps on.
__device__ __forceinline__ void request_box(const AttentionArgs& args, const Ring& ring, int place, int box, int row, int line) {
  const int stage = place % kStages, offset = box * kBoxBytes;
  copy_lines(ring.k(stage) + offset, &args.k, row, line, ring.k_full(stage), cache_policy<kEvictFirst>());
  copy_lines(ring.v(stage) + offset, &args.v, row, line, ring.v_full(stage), cache_policy<kEvictFirst>());
}

// One thread: the CTA's tile of that number of a contiguous cache.
__device__ __forceinline__ void request_tile(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int tile,
                                             int place) {
  const int head = hand.task.sequence() * args.rows_per_page + hand.task.head() * args.rows_per_head;
  expect_tile(ring, place, 1);
  request_box(args, ring, place, 0, head + first_token_of(args, hand.task, hand.length, tile), 0);
}

// Of a task's box, of which a CTA's tile has kBoxes: where it begins in the context.
__device__ __forceinline__ int token_of(const AttentionArgs& args, const TaskInHand& hand, int box) {
  return first_token_of(args, hand.task, hand.length, box / kBoxes) + box % kBoxes * kBoxTokens;
}

// Whether any query sees any of it.
__device__ __forceinline__ bool is_seen(const AttentionArgs& args, const TaskInHand& hand, int box) {
  const int token = token_of(args, hand, box);
  return box / kBoxes < hand.num_tiles && token < hand.length && token + kBoxTokens > first_seen(args, hand.length);
}

// The number of its page as the table has it, where it is seen. Nobody looks at it before it is needed, so that a read of it
// may take its time.
__device__ __forceinline__ int page_of(const AttentionArgs& args, const TaskInHand& hand, int box) {
  if (!is_seen(args, hand, box)) return 0;
  const long long first = static_cast<long long>(hand.task.sequence()) * args.max_pages;
  return load_relaxed_gpu(args.pages + first + (token_of(args, hand, box) >> args.page_shift));
}

// A page that is in the cache; else the one behind the map's end, where the copy engine finds zeros.
__device__ __forceinline__ int page_inside(const AttentionArgs& args, const TaskInHand& hand, int page) {
  if (page >= 0 && page < args.num_pages) return page;
  refuse(args, kPageRefused, hand.task.sequence(), page, args.num_pages);
  return args.num_pages;
}

// Where a box that is seen begins in the map, of whose page the table has that number.
__device__ __forceinline__ int row_of(const AttentionArgs& args, const TaskInHand& hand, int box, int page) {
  const int in_page = token_of(args, hand, box) & ((1 << args.page_shift) - 1);
  return page_inside(args, hand, page) * args.rows_per_page + hand.task.head() * args.rows_per_head + in_page;
}

// All lanes of the last warp: the CTA's tiles of a task of a paged cache. A lane looks after a box, at first one of the
// first 32, then one 32 boxes on. It knows where that begins, and fetches the number of its next one's page. So what a tile
// needs is at hand when its stage is free.
__device__ inline void request_pages(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int place, int pages) {
  const int lane = static_cast<int>(threadIdx.x) % 32, line = hand.task.head() * args.lines_per_head;
  int row = 0, next = pages;
  u32 seen = 0;
#pragma unroll 1
  for (int tile = 0; tile < hand.num_tiles; ++tile) {
    const int first = tile * kBoxes;
    if (first % 32 == 0) {
      const bool is_mine = is_seen(args, hand, first + lane);
      seen = __ballot_sync(0xFFFFFFFFu, is_mine);
      row = is_mine ? row_of(args, hand, first + lane, next) : 0;
      next = page_of(args, hand, first + 32 + lane);
    }
    const u32 of_tile = seen >> first % 32 & ((1u << kBoxes) - 1);
    if (lane == 0) expect_tile(ring, place + tile, __popc(of_tile));
#pragma unroll kUnrolledBoxes
    for (int box = 0; box < kBoxes; ++box) {
      const int from = __shfl_sync(0xFFFFFFFFu, row, first % 32 + box);
      if (lane == 0 && (of_tile >> box & 1) != 0) request_box(args, ring, place + tile, box, from, line);
    }
  }
}

// All lanes of the last warp: the numbers of a task's first 32 pages, one a lane, where the cache has pages.
__device__ __forceinline__ int first_pages(const AttentionArgs& args, const TaskInHand& hand) {
  return kIsPaged ? page_of(args, hand, static_cast<int>(threadIdx.x) % 32) : 0;
}

// All lanes of the last warp: the CTA's tiles of a task from `first` to `end`, of a paged cache all; `place`: of the task's
// first one in the ring, `pages`: its first ones.
__device__ __forceinline__ void request_tiles(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int first,
                                              int end, int place, int pages) {
  if constexpr (kIsPaged) {
    request_pages(args, ring, hand, place, pages);
  } else if (threadIdx.x % 32 == 0) {
    for (int tile = first; tile < end; ++tile) request_tile(args, ring, hand, tile, place + tile);
  }
}

// All lanes of the last warp: the rows are dealt to the CTAs in turns.
__device__ inline void prefetch_next_weights(const NextWeights& next) {
  const int lane = static_cast<int>(threadIdx.x) % 32, num_ctas = static_cast<int>(gridDim.x);
  if (next.taken_bytes == 0) return;
#pragma unroll 1
  for (int row = static_cast<int>(blockIdx.x) + lane * num_ctas; row < next.num_rows; row += 32 * num_ctas)
    prefetch_bytes(next.rows + static_cast<long long>(row) * next.row_bytes, next.taken_bytes);
}

// All lanes of the last warp: a CTA's way through its tasks. Where the plan has them, the first one is known, and is run even
// where it turns out to be empty.
struct OwnTasks {
  QueuePlace queue;
  AssignedPlace assigned;

  // The first task, if there is one, and how many of its tiles are requested.
  __device__ __forceinline__ bool begin(const AttentionArgs& args, const Ring& ring, TaskInHand& hand, int& requested) {
    requested = 0;
    if (args.num_assigned > 0) {
      assigned = first_assigned(args);
      const bool is_there = take_assigned(args, assigned, hand);
      if (!is_there) return false;
      request_queries(args, ring, hand.task, 0);
      if constexpr (!kIsPaged) {
        requested = min(kStages, hand.num_tiles);
        request_tiles(args, ring, hand, 0, requested, 0, 0);
      }
      return true;
    }
    hand.task = args.first[cluster_number()];
    request_queries(args, ring, hand.task, 0);
    const int length = load_length(args, hand.task.sequence());  // on their way meanwhile
    const int of_lane = has_task(queue) ? load_length(args, queue.task.sequence()) : 0;
    if constexpr (!kIsPaged) {
      requested = first_tiles(args, hand.task);
      request_tiles(args, ring, hand, 0, requested, 0, 0);
    }
    hand.length = clamped_length(args, hand.task.sequence(), length);
    know_lengths(args, queue, of_lane);
    hand.num_tiles = max(own_tiles(args, hand.task.span(), hand.length), requested);
    return true;
  }

  __device__ __forceinline__ bool next(const AttentionArgs& args, TaskInHand& hand) {
    return args.num_assigned > 0 ? take_assigned(args, assigned, hand) : take(args, queue, hand);
  }
};

// All lanes of the last warp, before griddepcontrol.wait: what the plan says.
__device__ __forceinline__ OwnTasks know_plan(const AttentionArgs& args) {
  OwnTasks own{};
  if (args.num_assigned > 0) return own;
  own.queue.first = __ldg(args.queues + cluster_number()) + 1;
  own.queue.end = __ldg(args.queues + cluster_number() + 1);
  know_tasks(args, own.queue);
  return own;
}

// The last warp: all of the CTA's tasks. What the next one needs to know is read before the tiles of the one before are
// requested, which takes as long as the ring is full.
__device__ inline void request_all(const AttentionArgs& args, const Ring& ring, OwnTasks& own) {
  const bool is_one = threadIdx.x % 32 == 0;
  TaskInHand hand{}, next{};
  int number = 0, place = 0, requested;
  bool has_task = own.begin(args, ring, hand, requested);
  int pages = has_task ? first_pages(args, hand) : 0;
  while (has_task) {
    if (is_one) announce(args, ring, hand, number % kTaskSlots);
    const bool has_next = own.next(args, next);
    const int next_pages = has_next ? first_pages(args, next) : 0;
    request_tiles(args, ring, hand, requested, hand.num_tiles, place, pages);
    place += hand.num_tiles;
    requested = 0;
    __syncwarp();
    if (++number >= kTaskSlots) mbarrier_wait(ring.task_empty(number % kTaskSlots), (number / kTaskSlots & 1) ^ 1);
    if (has_next) request_queries(args, ring, next.task, number % kTaskSlots);
    hand = next, pages = next_pages, has_task = has_next;
  }
  hand.num_tiles = -1;
  if (is_one) announce(args, ring, hand, number % kTaskSlots);
  if (args.next.is_early != 0) return;
  if (place > 0) mbarrier_wait(ring.v_full((place - 1) % kStages), (place - 1) / kStages & 1);
  prefetch_next_weights(args.next);
}
