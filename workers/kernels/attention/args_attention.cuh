// The parameter of an attention launch, and its tasks.
//
// Tasks. A task is a chunk of one sequence's context, read for a block of columns of one KV head. A plan gives all that
// the longest context would have to the CTAs' queues. What a launch has to do follows from the lengths that it reads. A
// chunk behind the end of its sequence is empty, and nobody runs it. Chunk 0 is never empty: of a sequence of length 0 it
// stores the zeros.
//
// Memory order. Lengths may be written by the launch before. They are read behind griddepcontrol.wait, past L1.
#pragma once
#include "config_attention.cuh"
#include "ptx_attention.cuh"
#include "ptx_hopper.cuh"

constexpr int kMostCtas = 160;

struct AttentionTask {
  int sequence_head;  // sequence << 16 | KV head
  int block_chunk;    // block of columns << 24 | chunk

  __device__ __forceinline__ int sequence() const { return sequence_head >> 16; }
  __device__ __forceinline__ int head() const { return sequence_head & 0xFFFF; }
  __device__ __forceinline__ int block() const { return block_chunk >> 24; }
  __device__ __forceinline__ int chunk() const { return block_chunk & 0xFFFFFF; }
};

struct AttentionArgs {
  TensorMap k, v;              // [lines of a head, sequences * KV heads * max_length, kLineDims]
  const u16* q;                // [sequences * new tokens, query heads, kHeadDim]
  u16* out;                    // the same
  const int* lengths;          // of each sequence, its new tokens included
  const AttentionTask* tasks;  // queue behind queue
  const int* queues;           // where the queue of each CTA begins, and where the last one ends
  float* partials;             // of each slot and chunk: kColumns * kHeadDim sums, then maximum and normaliser of each column
  u32* arrivals;               // of each slot
  long long* trace;            // kTraceWords of each CTA, in builds with kTracePhases
  int num_kv_heads, query_heads, new_tokens, num_blocks;  // query heads that share a KV head
  int max_length, chunk_tokens, num_chunks;
  u32 arrivals_per_launch;  // of a slot; a power of two, at least num_chunks
  float scale_log2;         // of scores, so that exp2 stands for exp
  int is_speculative;       // 1: the first tiles of a CTA's first task are requested before its length is known
  AttentionTask first[kMostCtas];

  __device__ __forceinline__ int num_columns() const { return query_heads * new_tokens; }
  __device__ __forceinline__ int slot(const AttentionTask& task) const {
    return (task.sequence() * num_kv_heads + task.head()) * num_blocks + task.block();
  }
};

// A task and what its sequence's length makes of it.
struct TaskInHand {
  AttentionTask task;
  int length;      // of the sequence, inside of the plan's range
  int num_tokens;  // that the chunk has
  int num_tiles;   // that are requested
};

// A CTA's way through its queue: each warp walks it by itself, and all come to the same tasks.
struct QueuePlace {
  int next, end;
  bool is_first;
};

__device__ __forceinline__ int clamped_length(const AttentionArgs& args, int sequence) {
  return min(max(load_relaxed_gpu(args.lengths + sequence), 0), args.max_length);
}

__device__ __forceinline__ int tokens_of(const AttentionArgs& args, int chunk, int length) {
  return min(max(length - chunk * args.chunk_tokens, 0), args.chunk_tokens);
}

__device__ __forceinline__ int tiles_for(int tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }

// What is requested of a CTA's first task before the length is there.
__device__ __forceinline__ int first_tiles(const AttentionArgs& args, const AttentionTask& task) {
  if (args.is_speculative == 0) return 0;
  return min(kStages, tiles_for(tokens_of(args, task.chunk(), args.max_length)));
}

// All lanes of a warp: the next task that is not empty, if there is one. A CTA's first task is always run.
__device__ inline bool take(const AttentionArgs& args, QueuePlace& queue, TaskInHand& hand) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (queue.is_first) {
    queue = {__ldg(args.queues + blockIdx.x), __ldg(args.queues + blockIdx.x + 1), false};
    if (queue.next == queue.end) return false;
    ++queue.next;
    hand.task = args.first[blockIdx.x];
    hand.length = clamped_length(args, hand.task.sequence());
    hand.num_tokens = tokens_of(args, hand.task.chunk(), hand.length);
    hand.num_tiles = max(tiles_for(hand.num_tokens), first_tiles(args, hand.task));
    return true;
  }
  while (queue.next < queue.end) {
    AttentionTask task{};
    int length = 0;
    bool has_work = false;
    if (queue.next + lane < queue.end) {
      const int2 words = __ldg(reinterpret_cast<const int2*>(args.tasks) + queue.next + lane);
      task = {words.x, words.y};
      length = clamped_length(args, task.sequence());
      has_work = task.chunk() == 0 || tokens_of(args, task.chunk(), length) > 0;
    }
    const u32 found = __ballot_sync(0xFFFFFFFFu, has_work);
    if (found == 0) {
      queue.next += 32;
      continue;
    }
    const int from = __ffs(static_cast<int>(found)) - 1;
    queue.next += from + 1;
    hand.task = {__shfl_sync(0xFFFFFFFFu, task.sequence_head, from), __shfl_sync(0xFFFFFFFFu, task.block_chunk, from)};
    hand.length = __shfl_sync(0xFFFFFFFFu, length, from);
    hand.num_tokens = tokens_of(args, hand.task.chunk(), hand.length);
    hand.num_tiles = tiles_for(hand.num_tokens);
    return true;
  }
  return false;
}

// What a traced build leaves of each CTA, in cycles but for the first.
enum AttentionEvent : int { kBeganNs, kBegan, kFirstK, kLastTile, kMerged, kArrived, kCombined, kEnded, kTraceWords };

__device__ __forceinline__ void stamp(const AttentionArgs& args, AttentionEvent event, bool is_who) {
  if constexpr (kTracePhases) {
    if (!is_who) return;
    args.trace[kTraceWords * blockIdx.x + event] = event == kBeganNs ? read_globaltimer() : read_clock();
  }
}
