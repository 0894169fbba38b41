// Loads queries and cache into shared memory without a copy engine, on sm_80 and newer. Each lane copies 16 bytes by
// cp.async, and arrives at a barrier when everything that it requested has arrived.
//
// Roles. One warp loads tasks, queries and keys; another loads values. Both iterate over the queue, so neither waits
// for the other: a warp copies about 49 GB/s, and a single reading SM can receive twice as much.
//
// Layout. Same as in the copy engine's swizzle: 16-byte chunk c of a token's line is at c ^ (token % 8).
//
// Ragged edges. Tokens after a context's end, and missing pages, are copied with zero valid bytes: they are zero in
// shared memory, and are not read. So their addresses need not be in the cache.
//
// Memory order. A lane's arrival comes after its copies. A team reads them after the barrier's phase. The arrival with
// which it returns a stage orders these reads before the lanes' next copies, which wait for all such arrivals.
#pragma once
#include "wait_attention.cuh"

constexpr int kChunkBytes = 16;
constexpr int kChunks = 2 * kHeadDim / kChunkBytes;  // chunks per row
constexpr int kRowsAtOnce = 32 / kChunks;            // rows that a warp copies with one instruction
static_assert(kBoxTokens % kRowsAtOnce == 0, "a box is copied by whole cp.async instructions");

// Called by one thread.
__device__ __forceinline__ void prepare_copies(const AttentionArgs&) {}

// Called by all lanes of the warp that loads tasks; each lane copies a chunk of some columns' rows.
__device__ __forceinline__ void request_queries(const AttentionArgs& args, const Ring& ring, const AttentionTask& task, int slot) {
  if (!brings_tasks()) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % kChunks, columns = columns_of(args, task);
  for (int column = lane / kChunks; column < columns; column += kRowsAtOnce) {
    const u16* row = args.q + column_offset(args, task, task.block() * kColumns + column);
    cp_async<kChunkBytes, kNoHint>(ring.queries(slot) + column * kQueryRowBytes + chunk * kChunkBytes, row + 8 * chunk, kChunkBytes);
  }
  cp_async_arrive(ring.task_full(slot));
}

// Called by the same lanes: writes the task; one lane arrives, or all lanes if no copies of queries arrive.
__device__ __forceinline__ void announce(const AttentionArgs&, const Ring& ring, const TaskInHand& hand, int slot) {
  if (!brings_tasks()) return;
  if (hand.num_tiles < 0) mbarrier_arrive(ring.task_full(slot));
  if (threadIdx.x % 32 != 0) return;
  store_shared_vector(ring.task(slot), hand.task.sequence_head, hand.task.block_span, hand.length, hand.num_tiles);
  mbarrier_arrive(ring.task_full(slot));
}

// Called by all lanes: copies a box's tokens, starting at the lane's first chunk; chunks of consecutive tokens are
// row_bytes apart. The swizzle is an xor of address bits set only by the token's low bits, so that all but eight copies
// differ by constants.
template <bool kIsWhole>
__device__ __forceinline__ void copy_tokens(u32 to, const unsigned char* from, int row_bytes, int num_tokens) {
  constexpr int kSteps = kBoxTokens / kRowsAtOnce, kTogether = kSteps < 8 ? kSteps : 8;
#pragma unroll 1
  for (int first = 0; first < kSteps; first += kTogether) {
#pragma unroll
    for (int step = 0; step < kTogether; ++step) {
      const int token = step * kRowsAtOnce;
      const int valid = kIsWhole || first * kRowsAtOnce + token < num_tokens ? kChunkBytes : 0;
      cp_async<kChunkBytes, kEvictFirst>((to ^ (token % 8 * kChunkBytes)) + token * 128, from + token * row_bytes, valid);
    }
    to += kTogether * kRowsAtOnce * 128;
    from += kTogether * kRowsAtOnce * row_bytes;
  }
}

// Called by all lanes: copies a box of one cache, starting at `row`; only the given number of its tokens is read, none
// if that is below 1.
__device__ __forceinline__ void copy_box(const AttentionArgs& args, u32 box, const CacheRows& cache, int row, int line,
                                         int num_tokens) {
  constexpr int kRowBytes = 2 * kHeadDim;  // of one head
  const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % kChunks, below = lane / kChunks;
  const bool is_dense = !kIsPaged || args.lines_per_head == 0;
  const int row_bytes = is_dense ? kRowBytes : kRowBytes * args.num_kv_heads;
  const unsigned char* from = cache.first + static_cast<long long>(row + below) * row_bytes + line * 128 + chunk * kChunkBytes;
  const u32 to = box + chunk / 8 * (kBoxTokens * 128) + below * 128 + (chunk % 8 ^ below) * kChunkBytes;
  if (num_tokens < kBoxTokens) {
    copy_tokens<false>(to, from, row_bytes, num_tokens - below);
  } else if (is_dense) {
    copy_tokens<true>(to, from, kRowBytes, 0);
  } else {
    copy_tokens<true>(to, from, row_bytes, 0);
  }
}

// Called by all lanes of a warp: copies the warp's part of a tile of a contiguous cache, starting at `row`; only the
// given number of tokens is read. Returns false to lanes that saw the CTA abort.
__device__ __forceinline__ bool request_tile(const AttentionArgs& args, const Ring& ring, int place, int number, int row,
                                             int num_tokens) {
  const int stage = place % kStages;
  const bool of_values = !brings_tasks();
  if (!wait_until_free(args, ring, place, number)) return false;
  copy_box(args, of_values ? ring.v(stage) : ring.k(stage), of_values ? args.v : args.k, row, 0, num_tokens);
  cp_async_arrive(of_values ? ring.v_full(stage) : ring.k_full(stage));
  return true;
}

// Called by all lanes of a warp: copies the warp's share of a tile of a paged cache, namely the boxes whose bits are
// set in `boxes`. Only the first `num_tokens` tokens are read. Lanes `first` and above hold the starts of the boxes, or the end of the cache if
// a page does not exist. `goes_on` becomes false for lanes that saw the CTA abort; in that case nothing is requested.
__device__ __forceinline__ void request_boxes(const AttentionArgs& args, const Ring& ring, int place, int number, u32 boxes,
                                              int first, int row, int line, int num_tokens, bool& goes_on) {
  const int stage = place % kStages;
  const bool of_values = !brings_tasks();
  const u32 tile = of_values ? ring.v(stage) : ring.k(stage);
  if (goes_on) goes_on = wait_until_free(args, ring, place, number);
#pragma unroll 1
  for (int box = 0; box < kBoxes; ++box) {
    const int from = __shfl_sync(0xFFFFFFFFu, row, first + box), left = num_tokens - box * kBoxTokens;
    const bool is_there = from < args.num_pages * args.rows_per_page;
    if (goes_on && (boxes >> box & 1) != 0)
      copy_box(args, tile + box * kBoxBytes, of_values ? args.v : args.k, from, line, is_there ? left : 0);
  }
  if (goes_on) cp_async_arrive(of_values ? ring.v_full(stage) : ring.k_full(stage));
}

// Called by all lanes of a warp after the CTA has aborted: waits until all of their requests have arrived.
__device__ inline void outlast_copies(const AttentionArgs&, const Ring&, int, int) {
  cp_async_commit();
  cp_async_wait<0>();
}

// Called by one thread: prefetches the beginning of a row of weights into the L2.
__device__ __forceinline__ void ask_for_row(const unsigned char* row, int bytes) {
  const unsigned char* line = row - reinterpret_cast<u64>(row) % 128;
#pragma unroll 1
  for (; line < row + bytes; line += 128) prefetch_l2(line);
}
