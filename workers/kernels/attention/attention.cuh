// Decode attention: out = softmax(scale Q K^T) V over a contiguous cache, for a few new tokens of each sequence.
//
// Roles. The last warp requests the cache (ring_attention.cuh). The others multiply: teams of warps take a task's tiles in
// turns, each warp its own 16 tokens (products.cuh). At the end of a task they meet (merge_attention.cuh).
//
// Launches. Queries, cache and lengths may be written by the launch before: nothing of them is read before
// griddepcontrol.wait. The plan is read before it.
//
// Liveness. No CTA waits for another one, so the grid may have any size.
#pragma once
#include "merge_attention.cuh"

__device__ inline void attend_all(const AttentionArgs& args, const Ring& ring, unsigned char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, team = warp / kSliceWarps, slice = warp % kSliceWarps;
  QueuePlace queue{0, 0, true};
  TaskInHand hand;
  Queries queries;
  Softmax softmax;
  bool is_first = true;
  int place = 0;
  while (take(args, queue, hand)) {
    load_queries(args, hand.task, queries);
    clear(softmax);
#pragma unroll 1
    for (int tile = team; tile < hand.num_tiles; tile += kTeams) {
      attend_slice(args, ring, hand, tile, place + tile, slice, queries, softmax);
      stamp(args, kFirstK, is_first && threadIdx.x == 0);
      is_first = false;
    }
    place += hand.num_tiles;
    stamp(args, kLastTile, threadIdx.x == 0);
    finish_task(args, hand, shared, min(hand.num_tiles, kTeams) * kSliceWarps, softmax);
  }
}

extern "C" __global__ void __launch_bounds__(kAttentionThreads) tuner_attention(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{shared_address(shared)};
  launch_dependents();
  stamp(args, kBeganNs, threadIdx.x == 0);
  stamp(args, kBegan, threadIdx.x == 0);
  const bool is_requester = threadIdx.x >= kMathThreads;
  if (threadIdx.x == kMathThreads) {
    init_ring(ring);
    prefetch_tensor_map(&args.k);
    prefetch_tensor_map(&args.v);
  }
  wait_for_prerequisites();
  if (threadIdx.x == kMathThreads) request_first(args, ring);
  __syncthreads();
  if (is_requester) {
    request_all(args, ring);
  } else {
    attend_all(args, ring, shared);
  }
  stamp(args, kEnded, threadIdx.x == 0);
}
