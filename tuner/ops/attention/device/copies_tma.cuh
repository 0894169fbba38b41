// How the copy engine loads queries and cache into shared memory: one thread requests boxes of tensor maps, and a
// barrier expects their bytes.
//
// Memory order. The copy engine writes data that the team reads by ldmatrix after the barrier's phase. An arrival
// orders these reads before the copy engine's next write.
#pragma once
#include "wait_attention.cuh"

constexpr int kUnrolledBoxes = kBoxes > 4 ? 1 : kBoxes;  // unrolled at once; with more, registers spill

// Called by one thread, before griddepcontrol.wait.
__device__ __forceinline__ void prepare_copies(const AttentionArgs& args) {
  prefetch_tensor_map(&args.k);
  prefetch_tensor_map(&args.v);
}

// Called by all lanes of the last warp; each lane requests the row of one column.
__device__ __forceinline__ void request_queries(const AttentionArgs& args, const Ring& ring, const AttentionTask& task, int slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= columns_of(args, task)) return;
  copy_bytes(ring.queries(slot) + lane * kQueryRowBytes, args.q + column_offset(args, task, task.block() * kColumns + lane),
             2 * kHeadDim, ring.task_full(slot));
}

// Called by all lanes of the last warp: writes the task, and expects the bytes of its queries.
__device__ __forceinline__ void announce(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int slot) {
  if (threadIdx.x % 32 != 0) return;
  store_shared_vector(ring.task(slot), hand.task.sequence_head, hand.task.block_span, hand.length, hand.num_tiles);
  const int bytes = hand.num_tiles < 0 ? 0 : columns_of(args, hand.task) * 2 * kHeadDim;
  mbarrier_arrive_expect(ring.task_full(slot), bytes);
}

// Called by one thread: waits until the stage of the ring's `place`-th tile is free, which then expects the given
// number of boxes of K and of V. False if the CTA has aborted: after that, nothing more may be expected or requested.
__device__ __forceinline__ bool expect_tile(const AttentionArgs& args, const Ring& ring, int place, int number, int num_boxes) {
  const int stage = place % kStages;
  if (!wait_until_free(args, ring, place, number)) return false;
  mbarrier_arrive_expect(ring.k_full(stage), num_boxes * kBoxBytes);
  mbarrier_arrive_expect(ring.v_full(stage), num_boxes * kBoxBytes);
  return true;
}

// Called by one thread: requests a box of both caches, starting at `row` and `line` of the maps.
__device__ __forceinline__ void request_box(const AttentionArgs& args, const Ring& ring, int place, int box, int row, int line) {
  const int stage = place % kStages, offset = box * kBoxBytes;
  copy_lines(ring.k(stage) + offset, &args.k, row, line, ring.k_full(stage), cache_policy<kEvictFirst>());
  copy_lines(ring.v(stage) + offset, &args.v, row, line, ring.v_full(stage), cache_policy<kEvictFirst>());
}

// Called by all lanes of the last warp: requests a tile of a contiguous cache, starting at `row`. The number of tokens
// is not needed, since the copy engine reads zeros after the end of the cache. False for lanes that saw the CTA abort.
__device__ __forceinline__ bool request_tile(const AttentionArgs& args, const Ring& ring, int place, int number, int row, int) {
  if (threadIdx.x % 32 != 0) return true;
  if (!expect_tile(args, ring, place, number, 1)) return false;
  request_box(args, ring, place, 0, row, 0);
  return true;
}

// Called by all lanes of the last warp: requests the boxes of a paged cache's tile whose bits are set. Lanes `first`
// and above hold the starts of the boxes. `goes_on` becomes false for lanes that saw the CTA abort; then nothing is
// requested.
__device__ __forceinline__ void request_boxes(const AttentionArgs& args, const Ring& ring, int place, int number, u32 boxes,
                                              int first, int row, int line, int, bool& goes_on) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0 && goes_on) goes_on = expect_tile(args, ring, place, number, __popc(boxes));
#pragma unroll kUnrolledBoxes
  for (int box = 0; box < kBoxes; ++box) {
    const int from = __shfl_sync(0xFFFFFFFFu, row, first + box);
    if (lane == 0 && goes_on && (boxes >> box & 1) != 0) request_box(args, ring, place, box, from, line);
  }
}

// Called by all lanes of the last warp after the CTA has aborted: waits until all requests for `num_tasks` tasks and
// `num_tiles` tiles have arrived.
__device__ inline void outlast_copies(const AttentionArgs& args, const Ring& ring, int num_tasks, int num_tiles) {
  if (threadIdx.x % 32 != 0) return;
  const long long start = clock64(), limit = args.spin_limit_cycles;
  for (int number = max(num_tasks - kTaskSlots, 0); number < num_tasks; ++number)
    outlast(ring.task_full(number % kTaskSlots), number / kTaskSlots & 1, start, limit);
  for (int place = max(num_tiles - kStages, 0); place < num_tiles; ++place) {
    outlast(ring.k_full(place % kStages), place / kStages & 1, start, limit);
    outlast(ring.v_full(place % kStages), place / kStages & 1, start, limit);
  }
}

// Called by one thread: prefetches the beginning of a row of weights into the L2.
__device__ __forceinline__ void ask_for_row(const unsigned char* row, int bytes) { prefetch_bytes(row, bytes); }
