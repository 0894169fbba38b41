// The part of a context that a launch reads: lengths, the window, spans that are not empty, tiles of a CTA, and the
// iteration over a queue.
//
// Spans. A span is empty if it is after the end of its sequence, or before everything that its queries see. It is
// skipped, unless it is the first of a queue. A sequence has at least one span that is not skipped: for length 0 it is
// the first one, which stores the zeros.
//
// By length. If the lengths determine how tasks are assigned, the tasks that are not empty are numbered. A warp holds
// the lengths of 32 sequences at a time. Their whole spans come first: sequence by sequence, and span by span within a
// sequence, followed by the remainders, the longest first. In a span, blocks of each KV head follow each other, so that
// heads of one page are read together. The C clusters take C numbers at a time, in alternating order: cluster c takes
// the c-th of them, and the next time the c-th from the end. So a cluster with the longest task of one round gets the
// shortest task of the next, and all clusters read about the same amount, whatever the lengths.
//
// The window. A query sees the last tokens up to its own. A context begins at the first token that any new one sees.
// The CTAs of a cluster take the tiles that start there.
//
// Readings. Each requesting warp reads lengths by itself. If a length changes meanwhile, two warps may disagree
// about the tasks: rows stay unwritten, and arrival counters become inconsistent, although no wait could
// expire. So each warp adds up a weighted number for each length that it has read. The weights of the readers of one
// length add up to 0. So the sum over all warps is 0 if they have read the same values; otherwise it is not 0, except
// in about one case in 2^32. request_attention.cuh describes who checks it.
//
// Memory order. Lengths may be written by the previous launch. They are read after griddepcontrol.wait, with L1
// bypassed.
#pragma once
#include "args_attention.cuh"

// A task, and its tiles given its sequence's length.
struct TaskInHand {
  AttentionTask task;
  int length;     // length of the sequence, within the plan's range
  int num_tiles;  // tiles that this CTA requests; negative at the end of the queue
};

// The weighted number for a length that a warp has read, as the `reader`-th of all readers. `of` is the index of
// the length.
__device__ __forceinline__ u32 reading(int of, int length, u32 reader, u32 num_readers) {
  u32 mixed = static_cast<u32>(length + 1) * 0x9E3779B1u ^ static_cast<u32>(of) * 0x85EBCA77u;
  mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6Du;
  mixed ^= mixed >> 12;
  return mixed * (reader == 0 ? 1 - num_readers * num_readers : 2 * reader + 1);  // 3, 5, ... are n^2 - 1 together
}

__device__ __forceinline__ bool is_first_warp() { return threadIdx.x < kRequester + 32; }

// The number of the calling warp, in CTA `cta`, among the reading warps of all CTAs.
__device__ __forceinline__ u32 reader_warp(int cta) { return cta * kReaderWarps + (is_first_warp() ? 0 : 1); }

// A cluster's iteration over its queue: each CTA iterates separately, and all get the same tasks. The lanes of a warp
// hold 32 tasks at a time, since a read takes as long as many tiles while the memory is busy.
struct QueuePlace {
  int first, end;      // ends of the tasks that the lanes hold, and of the queue
  u32 left;            // bits of the remaining tasks that are not empty
  AttentionTask task;  // the lane's task
  int length;          // length of the task's sequence
  u32 read;            // the sum of the lane's readings
};

__device__ __forceinline__ int load_length(const AttentionArgs& args, int sequence) {
  return load_relaxed_gpu(args.lengths + sequence);
}

// A length, clamped to the valid range.
__device__ __forceinline__ int clamped_length(const AttentionArgs& args, int sequence, int length) {
  const int inside = min(max(length, 0), args.max_length);
  if (length != inside) refuse(args, kLengthRefused, sequence, length, args.max_length + 1);
  return inside;
}

// The first token of a context that a new token sees.
__device__ __forceinline__ int first_seen(const AttentionArgs& args, int length) {
  return kHasWindow ? max(length - args.new_tokens + 1 - args.window, 0) : 0;
}

// The spans of a context that are not empty.
struct LiveSpans {
  int first, end;

  __device__ __forceinline__ int count() const { return end - first; }
  __device__ __forceinline__ bool has(int span) const { return first <= span && span < end; }
};

__device__ __forceinline__ LiveSpans live_spans(const AttentionArgs& args, int length) {
  const int end = max((length + args.span_tokens - 1) / args.span_tokens, 1);
  return {kHasWindow ? first_seen(args, length) / args.span_tokens : 0, end};
}

__device__ __forceinline__ int tokens_of(const AttentionArgs& args, int span, int length) {
  return min(max(length - span * args.span_tokens, 0), args.span_tokens);
}

// The number of a span's tiles that no query sees.
__device__ __forceinline__ int skipped_tiles(const AttentionArgs& args, int span, int length) {
  return kHasWindow ? max(first_seen(args, length) - span * args.span_tokens, 0) / kTileTokens : 0;
}

// How many of a span's tiles are this CTA's: it takes every kCluster-th, starting at the first one that is not skipped.
__device__ __forceinline__ int own_tiles(const AttentionArgs& args, int span, int length) {
  const int tiles = (tokens_of(args, span, length) + kTileTokens - 1) / kTileTokens - skipped_tiles(args, span, length);
  return (max(tiles, 0) + kCluster - 1 - cluster_rank()) / kCluster;
}

// The position in the context at which the CTA's tile number `tile` begins.
__device__ __forceinline__ int first_token_of(const AttentionArgs& args, const AttentionTask& task, int length, int tile) {
  const int place = skipped_tiles(args, task.span(), length) + cluster_rank() + tile * kCluster;
  return task.span() * args.span_tokens + place * kTileTokens;
}

// How many tiles of a CTA's first task are requested before the length is known. Pages and windows depend on the
// length.
__device__ __forceinline__ int first_tiles(const AttentionArgs& args, const AttentionTask& task) {
  if (kIsPaged || kHasWindow || args.is_speculative == 0) return 0;
  return min(kStages, own_tiles(args, task.span(), args.max_length));
}

// Called by all lanes of a warp: reads the queue's tasks, starting at `first`. Plans are read before
// griddepcontrol.wait.
__device__ __forceinline__ void know_tasks(const AttentionArgs& args, QueuePlace& queue) {
  const int place = queue.first + static_cast<int>(threadIdx.x) % 32;
  queue.task = {0, 0};
  if (place >= queue.end) return;
  const int2 words = __ldg(reinterpret_cast<const int2*>(args.tasks) + place);
  queue.task = {words.x, words.y};
}

__device__ __forceinline__ bool has_task(const QueuePlace& queue) {
  return queue.first + static_cast<int>(threadIdx.x) % 32 < queue.end;
}

// Adds a lane's reading of the length for one of its tasks; the warps of all spans of a context read that length.
__device__ __forceinline__ void add_reading(const AttentionArgs& args, QueuePlace& queue, const AttentionTask& task, int length) {
  const u32 reader = reader_warp(task.span() * kCluster + cluster_rank());
  queue.read += reading(args.slot(task), length, reader, args.num_spans * kCluster * kReaderWarps);
}

// Called by all lanes of a warp: sets the lengths of the lanes' tasks. `length` is that of the lane's context, as read.
__device__ __forceinline__ void know_lengths(const AttentionArgs& args, QueuePlace& queue, int length) {
  queue.length = has_task(queue) ? clamped_length(args, queue.task.sequence(), length) : 0;
  if (has_task(queue)) add_reading(args, queue, queue.task, queue.length);
  queue.left = __ballot_sync(0xFFFFFFFFu, has_task(queue) && live_spans(args, queue.length).has(queue.task.span()));
}

// Called by all lanes of a warp: takes the next task that is not empty, if there is one.
__device__ inline bool take(const AttentionArgs& args, QueuePlace& queue, TaskInHand& hand) {
  while (queue.left == 0) {
    if (queue.first + 32 >= queue.end) return false;
    queue.first += 32;
    know_tasks(args, queue);
    know_lengths(args, queue, has_task(queue) ? load_length(args, queue.task.sequence()) : 0);
  }
  const int from = __ffs(static_cast<int>(queue.left)) - 1;
  queue.left &= queue.left - 1;
  hand.task = {__shfl_sync(0xFFFFFFFFu, queue.task.sequence_head, from), __shfl_sync(0xFFFFFFFFu, queue.task.block_span, from)};
  hand.length = __shfl_sync(0xFFFFFFFFu, queue.length, from);
  hand.num_tiles = own_tiles(args, hand.task.span(), hand.length);
  return true;
}

// A cluster's iteration over the assigned tasks. Numbers only increase, so the warp never returns to earlier sequences.
struct AssignedPlace {
  int next, step;      // the cluster's next number, and the distance to the one after it
  int first_sequence;  // index among the 32 tasks that the lanes hold
  int before, known;   // tasks of sequences before it, and the number after the last task of these 32
  int length;          // length of the lane's sequence
  int end, rank;       // the number after its last whole span, and the position of its remainder among those of all 32
  u32 read;            // the sum of the lane's readings
};

// Called by all lanes of a warp: reads the lengths and tasks of 32 sequences.
__device__ inline void know_sequences(const AttentionArgs& args, AssignedPlace& place) {
  const int lane = static_cast<int>(threadIdx.x) % 32, sequence = place.first_sequence + lane;
  const int blocks = args.num_kv_heads * args.num_blocks;
  int rest = -1;  // tokens; none if the length is 0, which is also a task
  place.length = place.end = 0;
  if (sequence < args.num_assigned) {
    place.length = clamped_length(args, sequence, load_length(args, sequence));
    place.read += reading(sequence, place.length, reader_warp(blockIdx.x), args.num_readers());
    const LiveSpans live = live_spans(args, place.length);
    const int last = tokens_of(args, live.end - 1, place.length);
    if (last < args.span_tokens) rest = last;
    place.end = (live.count() - (rest >= 0)) * blocks;
  }
  const u32 has_rest = __ballot_sync(0xFFFFFFFFu, rest >= 0);
  place.rank = 0;
#pragma unroll 4
  for (int other = 0; other < 32; ++other) {
    const int of_other = __shfl_sync(0xFFFFFFFFu, rest, other);
    place.rank += of_other > rest || (of_other == rest && other < lane);
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_sync(0xFFFFFFFFu, place.end, max(lane - distance, 0));
    if (lane >= distance) place.end += other;
  }
  place.end += place.before;
  place.known = __shfl_sync(0xFFFFFFFFu, place.end, 31) + __popc(has_rest) * blocks;
}

// Called by all lanes of a warp: the iteration before a task is taken.
__device__ inline AssignedPlace first_assigned(const AttentionArgs& args) {
  const int cluster = cluster_number();
  AssignedPlace place{};
  place.next = cluster, place.step = 2 * (args.num_queues - cluster) - 1;
  know_sequences(args, place);
  return place;
}

// Called by all lanes of a warp: takes the cluster's next task, if there is one.
__device__ inline bool take_assigned(const AttentionArgs& args, AssignedPlace& place, TaskInHand& hand) {
  while (place.next >= place.known) {
    if (place.first_sequence + 32 >= args.num_assigned) return false;
    place.first_sequence += 32, place.before = place.known;
    know_sequences(args, place);
  }
  const int blocks = args.num_kv_heads * args.num_blocks, rests = __shfl_sync(0xFFFFFFFFu, place.end, 31);
  const bool is_rest = place.next >= rests;
  const u32 ended = __ballot_sync(0xFFFFFFFFu, place.end <= place.next);
  const u32 of_rest = __ballot_sync(0xFFFFFFFFu, place.rank == (place.next - rests) / blocks);
  const int from = is_rest ? __ffs(static_cast<int>(of_rest)) - 1 : __popc(ended);
  const int begin = __shfl_sync(0xFFFFFFFFu, place.end, max(from - 1, 0));
  const int number = place.next - (is_rest ? rests : from == 0 ? place.before : begin), block = number % blocks;
  hand.length = __shfl_sync(0xFFFFFFFFu, place.length, from);
  const LiveSpans live = live_spans(args, hand.length);
  const int span = is_rest ? live.end - 1 : live.first + number / blocks;
  hand.task.sequence_head = (place.first_sequence + from) << 16 | block / args.num_blocks;
  hand.task.block_span = block % args.num_blocks << 24 | span;
  hand.num_tiles = own_tiles(args, span, hand.length);
  place.next += place.step, place.step = 2 * args.num_queues - place.step;
  return true;
}
