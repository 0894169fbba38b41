// The ring of K and V, and the warp that fills it.
//
// Layout. A stage is a tile of K and the same tokens' tile of V. A tile has a line of 128 bytes of each token, then the
// next line of each, all under the 128-byte swizzle. Behind the stages lie the mbarriers, then what merge_attention.cuh has.
//
// Who waits for whom. Lane 0 of the last warp requests the tiles of the CTA's tasks, task behind task. K and V of a stage
// have a barrier each, so that scores begin while V is on its way. The warps of the team that multiplies a tile hand its
// stage back, one arrival a warp.
//
// Memory order. The copy engine writes what the team reads by ldmatrix behind the barrier's phase. An arrival orders these
// reads before the copy engine's next write.
#pragma once
#include "args_attention.cuh"

constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kBarrierBytes = 512;
static_assert(24 * kStages <= kBarrierBytes, "three barriers a stage");

struct Ring {
  u32 base;

  __device__ __forceinline__ u32 k(int stage) const { return base + stage * kStageBytes; }
  __device__ __forceinline__ u32 v(int stage) const { return k(stage) + kTileBytes; }
  __device__ __forceinline__ u32 k_full(int stage) const { return base + kRingBytes + 24 * stage; }
  __device__ __forceinline__ u32 v_full(int stage) const { return k_full(stage) + 8; }
  __device__ __forceinline__ u32 empty(int stage) const { return k_full(stage) + 16; }
};

__device__ inline void init_ring(const Ring& ring) {
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(ring.k_full(stage), 1);
    mbarrier_init(ring.v_full(stage), 1);
    mbarrier_init(ring.empty(stage), kSliceWarps);
  }
  fence_mbarrier_init();
}

// One thread: tile `tile` of a task into the stage of the ring's `place`-th tile.
__device__ __forceinline__ void request_tile(const AttentionArgs& args, const Ring& ring, const AttentionTask& task, int tile,
                                             int place) {
  const int stage = place % kStages;
  if (place >= kStages) mbarrier_wait(ring.empty(stage), (place / kStages & 1) ^ 1);
  const int row = (task.sequence() * args.num_kv_heads + task.head()) * args.max_length +
                  task.chunk() * args.chunk_tokens + tile * kTileTokens;
  mbarrier_arrive_expect(ring.k_full(stage), kTileBytes);
  copy_lines(ring.k(stage), &args.k, row, 0, ring.k_full(stage), cache_policy<kEvictFirst>());
  mbarrier_arrive_expect(ring.v_full(stage), kTileBytes);
  copy_lines(ring.v(stage), &args.v, row, 0, ring.v_full(stage), cache_policy<kEvictFirst>());
}

// One thread, before the CTA's first barrier: what is requested of the first task before its length is known.
__device__ inline void request_first(const AttentionArgs& args, const Ring& ring) {
  const AttentionTask task = args.first[blockIdx.x];
  for (int tile = 0; tile < first_tiles(args, task); ++tile) request_tile(args, ring, task, tile, tile);
}

// The last warp: all tiles of the queue, but those that were requested before.
__device__ inline void request_all(const AttentionArgs& args, const Ring& ring) {
  QueuePlace queue{0, 0, true};
  TaskInHand hand;
  bool is_first = true;
  for (int place = 0; take(args, queue, hand); place += hand.num_tiles) {
    if (threadIdx.x % 32 == 0) {
      for (int tile = is_first ? first_tiles(args, hand.task) : 0; tile < hand.num_tiles; ++tile)
        request_tile(args, ring, hand.task, tile, place + tile);
    }
    is_first = false;
    __syncwarp();
  }
}
