// The parameter of an attention launch, and its tasks.
//
// Tasks. A task is a span of one sequence's context, read for a block of columns of one KV head by the CTAs of a cluster.
// A plan gives all that the longest context would have to the clusters' queues. What a launch has to do follows from the
// lengths that it reads. A span behind the end of its sequence is empty, and nobody runs it. Span 0 is never empty: of a
// sequence of length 0 it stores the zeros.
//
// Memory order. Lengths may be written by the launch before. They are read behind griddepcontrol.wait, past L1.
//
// The launch behind. A projection of the results reads weights, which depend on nobody. While a launch ends, the memory has
// nothing to do. So it may ask the L2 for the beginning of each row of them, behind all that it requests for itself.
#pragma once
#include "config_attention.cuh"
#include "ptx_attention.cuh"
#include "ptx_hopper.cuh"

constexpr int kMostQueues = 160;

struct AttentionTask {
  int sequence_head;  // sequence << 16 | KV head
  int block_span;     // block of columns << 24 | span

  __device__ __forceinline__ int sequence() const { return sequence_head >> 16; }
  __device__ __forceinline__ int head() const { return sequence_head & 0xFFFF; }
  __device__ __forceinline__ int block() const { return block_span >> 24; }
  __device__ __forceinline__ int span() const { return block_span & 0xFFFFFF; }
};

// Weights [num_rows, row_bytes] of the launch behind, of which the first taken_bytes of each row are brought into the L2.
struct NextWeights {
  const unsigned char* rows;
  int num_rows, row_bytes, taken_bytes, zero;
};

struct AttentionArgs {
  TensorMap k, v;              // [lines of a head, sequences * KV heads * max_length, kLineDims]
  const u16* q;                // [sequences * new tokens, query heads, kHeadDim]
  u16* out;                    // the same
  const int* lengths;          // of each sequence, its new tokens included
  const AttentionTask* tasks;  // queue behind queue
  const int* queues;           // where the queue of each cluster begins, and where the last one ends
  float* partials;             // of each slot and span kPartialFloats, as merge_attention.cuh has them
  u32* arrivals;               // of each slot, and in it of each CTA of a cluster
  long long* trace;            // kTracedTasks * kTraceWords of each CTA, in builds with kTracePhases
  NextWeights next;            // all zeros for none
  int num_kv_heads, query_heads, new_tokens, num_blocks;  // query heads that share a KV head
  int max_length, span_tokens, num_spans;
  u32 arrivals_per_launch;  // of a slot; a power of two, at least num_spans
  float scale_log2;         // of scores, so that exp2 stands for exp
  int is_speculative;       // 1: the first tiles of a CTA's first task are requested before its length is known
  AttentionTask first[kMostQueues];

  __device__ __forceinline__ int num_columns() const { return query_heads * new_tokens; }
  __device__ __forceinline__ int slot(const AttentionTask& task) const {
    return (task.sequence() * num_kv_heads + task.head()) * num_blocks + task.block();
  }
};

// A task and what its sequence's length makes of it.
struct TaskInHand {
  AttentionTask task;
  int length;     // of the sequence, inside of the plan's range
  int num_tiles;  // that this CTA requests; below 0: the queue is at its end
};

// A cluster's way through its queue: each CTA walks it by itself, and all come to the same tasks.
struct QueuePlace {
  int next, end;
};

__device__ __forceinline__ int cluster_number() { return static_cast<int>(blockIdx.x) / kCluster; }
__device__ __forceinline__ int cluster_rank() { return static_cast<int>(blockIdx.x) % kCluster; }

__device__ __forceinline__ int clamped_length(const AttentionArgs& args, int sequence) {
  return min(max(load_relaxed_gpu(args.lengths + sequence), 0), args.max_length);
}

__device__ __forceinline__ int tokens_of(const AttentionArgs& args, int span, int length) {
  return min(max(length - span * args.span_tokens, 0), args.span_tokens);
}

// Of the tiles of so many tokens, those of this CTA: it takes tiles rank, rank + kCluster, ...
__device__ __forceinline__ int own_tiles(int tokens) {
  const int tiles = (tokens + kTileTokens - 1) / kTileTokens;
  return (tiles + kCluster - 1 - cluster_rank()) / kCluster;
}

// Where the CTA's tile of that number begins in the context.
__device__ __forceinline__ int first_token_of(const AttentionArgs& args, const AttentionTask& task, int tile) {
  return task.span() * args.span_tokens + (cluster_rank() + tile * kCluster) * kTileTokens;
}

__device__ __forceinline__ int live_spans(const AttentionArgs& args, int length) {
  return max((length + args.span_tokens - 1) / args.span_tokens, 1);
}

// What is requested of a CTA's first task before the length is there.
__device__ __forceinline__ int first_tiles(const AttentionArgs& args, const AttentionTask& task) {
  if (args.is_speculative == 0) return 0;
  return min(kStages, own_tiles(tokens_of(args, task.span(), args.max_length)));
}

// All lanes of a warp: the next task that is not empty, if there is one.
__device__ inline bool take(const AttentionArgs& args, QueuePlace& queue, TaskInHand& hand) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  while (queue.next < queue.end) {
    AttentionTask task{};
    int length = 0;
    bool has_work = false;
    if (queue.next + lane < queue.end) {
      const int2 words = __ldg(reinterpret_cast<const int2*>(args.tasks) + queue.next + lane);
      task = {words.x, words.y};
      length = clamped_length(args, task.sequence());
      has_work = task.span() == 0 || tokens_of(args, task.span(), length) > 0;
    }
    const u32 found = __ballot_sync(0xFFFFFFFFu, has_work);
    if (found == 0) {
      queue.next += 32;
      continue;
    }
    const int from = __ffs(static_cast<int>(found)) - 1;
    queue.next += from + 1;
    hand.task = {__shfl_sync(0xFFFFFFFFu, task.sequence_head, from), __shfl_sync(0xFFFFFFFFu, task.block_span, from)};
    hand.length = __shfl_sync(0xFFFFFFFFu, length, from);
    hand.num_tiles = own_tiles(tokens_of(args, hand.task.span(), hand.length));
    return true;
  }
  return false;
}

// What a traced build leaves of each CTA's first tasks, in cycles but for the first.
enum AttentionEvent : int { kBeganNs, kBegan, kFirstK, kLastTile, kMerged, kArrived, kCombined, kTaken, kTraceWords };
constexpr int kTracedTasks = 4;

__device__ __forceinline__ void stamp(const AttentionArgs& args, AttentionEvent event, int task, bool is_who) {
  if constexpr (kTracePhases) {
    if (!is_who || task >= kTracedTasks) return;
    long long* words = args.trace + kTraceWords * (kTracedTasks * static_cast<long long>(blockIdx.x) + task);
    words[event] = event == kBeganNs ? read_globaltimer() : read_clock();
  }
}
