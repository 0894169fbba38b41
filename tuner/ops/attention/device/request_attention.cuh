// The warps that load a CTA's tasks, their queries and their tiles of K and V: one, or two, of which one loads only
// values.
#pragma once
#include "copies_tma.cuh"

// The position in the context at which a task's box begins; a CTA's tile has kBoxes of them.
__device__ __forceinline__ int token_of(const AttentionArgs& args, const TaskInHand& hand, int box) {
  return first_token_of(args, hand.task, hand.length, box / kBoxes) + box % kBoxes * kBoxTokens;
}

// Whether any query sees any token of the box.
__device__ __forceinline__ bool is_seen(const AttentionArgs& args, const TaskInHand& hand, int box) {
  const int token = token_of(args, hand, box);
  return box / kBoxes < hand.num_tiles && token < hand.length && token + kBoxTokens > first_seen(args, hand.length);
}

// The page number in the table, if the box is seen. It is used late, which hides the latency of the read.
__device__ __forceinline__ int page_of(const AttentionArgs& args, const TaskInHand& hand, int box) {
  if (!is_seen(args, hand, box)) return 0;
  const long long first = static_cast<long long>(hand.task.sequence()) * args.max_pages;
  return load_relaxed_gpu(args.pages + first + (token_of(args, hand, box) >> args.page_shift));
}

// The page if it is valid; otherwise the one after the map's end, where the copy engine reads zeros.
__device__ __forceinline__ int page_inside(const AttentionArgs& args, const TaskInHand& hand, int page) {
  if (page >= 0 && page < args.num_pages) return page;
  refuse(args, kPageRefused, hand.task.sequence(), page, args.num_pages);
  return args.num_pages;
}

// The position in the map at which a visible box begins, given its page number in the table.
__device__ __forceinline__ int row_of(const AttentionArgs& args, const TaskInHand& hand, int box, int page) {
  const int in_page = token_of(args, hand, box) & ((1 << args.page_shift) - 1);
  return page_inside(args, hand, page) * args.rows_per_page + hand.task.head() * args.rows_per_head + in_page;
}

// Called by all lanes of a requesting warp: same as `request_tiles`, for the CTA's tiles of a task in a paged cache.
// Each lane handles one box, at first one of the first 32, then the one 32 boxes later. It holds the start of its box,
// and loads the page number of its next one. So a tile's addresses are available when its stage is free.
__device__ inline int request_pages(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int number, int place,
                                    int pages) {
  const int lane = static_cast<int>(threadIdx.x) % 32, line = hand.task.head() * args.lines_per_head;
  int row = 0, next = pages, done = 0;
  bool goes_on = true;
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
    const int tokens = hand.length - token_of(args, hand, first);
    request_boxes(args, ring, place + tile, number, of_tile, first % 32, row, line, tokens, goes_on);
    done += goes_on;
  }
  return done;
}

// Called by all lanes of a requesting warp: the numbers of a task's first 32 pages, one per lane, if the cache has
// pages.
__device__ __forceinline__ int first_pages(const AttentionArgs& args, const TaskInHand& hand) {
  return kIsPaged ? page_of(args, hand, static_cast<int>(threadIdx.x) % 32) : 0;
}

// Called by all lanes of a requesting warp: requests tiles `first` to `end` - 1 of the CTA's task `number`, or all
// tiles if the cache is paged. `place` is the position of the task's first tile in the ring, and `pages` are its first
// page numbers. Returns `end`, or an earlier tile if the CTA has aborted.
__device__ __forceinline__ int request_tiles(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int number,
                                             int first, int end, int place, int pages) {
  if constexpr (kIsPaged) {
    return request_pages(args, ring, hand, number, place, pages);
  } else {
    const int head = hand.task.sequence() * args.rows_per_page + hand.task.head() * args.rows_per_head;
    for (int tile = first; tile < end; ++tile) {
      const int token = first_token_of(args, hand.task, hand.length, tile);
      if (!request_tile(args, ring, place + tile, number, head + token, hand.length - token)) return tile;
    }
    return end;
  }
}

// Called by all lanes of the warp that loads tasks; the CTAs take the rows of weights in turn.
__device__ inline void prefetch_next_weights(const NextWeights& next) {
  const int lane = static_cast<int>(threadIdx.x) % 32, num_ctas = static_cast<int>(gridDim.x);
  if (next.taken_bytes == 0) return;
#pragma unroll 1
  for (int row = static_cast<int>(blockIdx.x) + lane * num_ctas; row < next.num_rows; row += 32 * num_ctas)
    ask_for_row(next.rows + static_cast<long long>(row) * next.row_bytes, next.taken_bytes);
}

// A CTA's iteration over its tasks, by all lanes of a requesting warp. If the plan contains the tasks, the first one is
// known, and is run even if it turns out to be empty.
struct OwnTasks {
  QueuePlace queue;
  AssignedPlace assigned;

  // The first task, if there is one, and the number of its tiles that have been requested.
  __device__ __forceinline__ bool begin(const AttentionArgs& args, const Ring& ring, TaskInHand& hand, int& requested) {
    requested = 0;
    if (args.num_assigned > 0) {
      assigned = first_assigned(args);
      const bool is_there = take_assigned(args, assigned, hand);
      if (!is_there) return false;
      request_queries(args, ring, hand.task, 0);
      if constexpr (!kIsPaged) {
        requested = min(kStages, hand.num_tiles);
        request_tiles(args, ring, hand, 0, 0, requested, 0, 0);
      }
      return true;
    }
    hand.task = args.first[cluster_number()];
    request_queries(args, ring, hand.task, 0);
    const int length = load_length(args, hand.task.sequence());  // in flight meanwhile
    const int of_lane = has_task(queue) ? load_length(args, queue.task.sequence()) : 0;
    if constexpr (!kIsPaged) {
      hand.length = args.max_length;  // as far as is known
      requested = first_tiles(args, hand.task);
      request_tiles(args, ring, hand, 0, 0, requested, 0, 0);
    }
    hand.length = clamped_length(args, hand.task.sequence(), __shfl_sync(0xFFFFFFFFu, length, 0));  // one for all lanes
    if (threadIdx.x % 32 == 0) add_reading(args, queue, hand.task, hand.length);
    know_lengths(args, queue, of_lane);
    hand.num_tiles = max(own_tiles(args, hand.task.span(), hand.length), requested);
    return true;
  }

  __device__ __forceinline__ bool next(const AttentionArgs& args, TaskInHand& hand) {
    return args.num_assigned > 0 ? take_assigned(args, assigned, hand) : take(args, queue, hand);
  }
};

// Called by all lanes of a warp after its last task: adds the warp's readings to the sum of all. Each warp adds 1 to
// the sum's lower half, except for the launch's first warp, which subtracts the number of the others. So the last warp
// to arrive finds 0 there. The upper half is then also 0, unless warps have read different values, in which case the
// CTA aborts. `number` is the number of tasks that the warp has processed.
__device__ inline void compare_readings(const AttentionArgs& args, const Ring& ring, u32 read, int number) {
  const u32 of_warp = __reduce_add_sync(0xFFFFFFFFu, read);
  if (threadIdx.x % 32 != 0) return;
  const u64 count = reader_warp(blockIdx.x) == 0 ? 1 - static_cast<u64>(args.num_readers()) : 1;
  const u64 added = (static_cast<u64>(of_warp) << 32) + count, sum = fetch_add_relaxed_gpu(args.readings(), added) + added;
  if (static_cast<u32>(sum) == 0 && sum != 0) give_up(ring.stopped(), word_of(kForLengths, number), threadIdx.x / 32, 0);
}

// Called by all lanes of a requesting warp, before griddepcontrol.wait: reads the plan's tasks.
__device__ __forceinline__ OwnTasks know_plan(const AttentionArgs& args) {
  OwnTasks own{};
  if (args.num_assigned > 0) return own;
  own.queue.first = __ldg(args.queues + cluster_number()) + 1;
  own.queue.end = __ldg(args.queues + cluster_number() + 1);
  know_tasks(args, own.queue);
  return own;
}

// How much a warp has requested so far: the number of the CTA's tasks, and of the ring's tiles.
struct Requested {
  int tasks, tiles;
};

// Called by the warp that loads values, if it reads no lengths: processes the tasks that the other warp passes on. The
// plan determines what is requested before any length is known.
__device__ inline void request_values(const AttentionArgs& args, const Ring& ring, Requested& asked) {
  TaskInHand hand{};
  int requested = 0;
  if (!kIsPaged && args.num_assigned == 0) {
    hand.task = args.first[cluster_number()], hand.length = args.max_length;
    requested = first_tiles(args, hand.task);
    request_tiles(args, ring, hand, 0, 0, requested, 0, 0);
  }
  for (int number = 0; at_hand(args, ring, number, hand) && hand.num_tiles >= 0; ++number) {
    hand_back(ring, number);
    const int pages = first_pages(args, hand);
    const int done = request_tiles(args, ring, hand, number, requested, hand.num_tiles, asked.tiles, pages);
    asked.tiles += done;
    if (!all_agree(done == hand.num_tiles)) return;
    requested = 0;
  }
}

// Called by a requesting warp: processes all of the CTA's tasks, until the CTA aborts. The data of the next task is
// read before the tiles of the current one are requested, since requests wait while the ring is full.
__device__ inline void request_all(const AttentionArgs& args, const Ring& ring, OwnTasks& own, Requested& asked) {
  if constexpr (kLengthsOnce && kRequestWarps > 1) {
    if (!brings_tasks()) return request_values(args, ring, asked);
  }
  TaskInHand hand{}, next{};
  int requested;
  bool has_task = own.begin(args, ring, hand, requested);
  int pages = has_task ? first_pages(args, hand) : 0;
  while (has_task) {
    announce(args, ring, hand, asked.tasks % kTaskSlots);
    const bool has_next = own.next(args, next);
    const int next_pages = has_next ? first_pages(args, next) : 0;
    const int done = request_tiles(args, ring, hand, asked.tasks, requested, hand.num_tiles, asked.tiles, pages);
    asked.tiles += done;
    requested = 0;
    const int number = ++asked.tasks;
    if (!all_agree(done == hand.num_tiles)) return;
    if (number >= kTaskSlots && brings_tasks()) {
      const u32 parity = (number / kTaskSlots & 1) ^ 1;
      if (!all_agree(wait_phase(args, ring, ring.task_empty(number % kTaskSlots), parity, kForTaskSlot, number))) return;
    }
    if (has_next) request_queries(args, ring, next.task, number % kTaskSlots);
    hand = next, pages = next_pages, has_task = has_next;
  }
  hand.num_tiles = -1;
  announce(args, ring, hand, asked.tasks++ % kTaskSlots);
  if constexpr (kBoundsWaits) compare_readings(args, ring, args.num_assigned > 0 ? own.assigned.read : own.queue.read, asked.tasks - 1);
  if (args.next.is_early != 0 || !brings_tasks()) return;
  const int last = asked.tiles - 1;
  if (last >= 0 && !wait_phase(args, ring, ring.v_full(last % kStages), last / kStages & 1, kForValues, asked.tasks - 1)) return;
  prefetch_next_weights(args.next);
}
