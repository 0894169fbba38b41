// Combines the warps' sums into a row of the result. Warps of a CTA exchange sums in shared memory, CTAs of a cluster
// in the shared memory of the CTA that owns an item, i.e. four elements of a column, and spans of a context in the
// workspace.
//
// Layout. After the current tasks come the sums of each warp, column by column, kSumStride floats per column; then the
// maximum and normaliser of each warp and column. For clusters, two buffers for data from other CTAs follow: from each
// of them, a share of the items, then the maximum and the normaliser of each column. A slot of the workspace is a block
// of columns of one KV head of one sequence. For each span it has kColumns * kHeadDim sums, then, for each CTA of the
// cluster, the maximum and the normaliser of each column. It has room for all spans of the longest context.
//
// Waits. No CTA waits for another cluster. The warps that finish tasks wait until the others have stored their sums,
// and release that memory. In a cluster, each CTA sends to each other CTA the latter's share of the items, and waits
// for all sums of its own share. A buffer is written again two tasks later; by then, the sender has received data that
// the receiver sent after reading it. A span stores its sums and increments a counter. The last span to arrive adds up
// all spans that are not empty. A single span stores the result itself.
//
// Order of the sum. Slices of a CTA are added in the teams' order in the task, CTAs of a cluster by rank, and spans by
// their number; all spans are read from the slot, including the one that arrives last. The order does not depend on
// other sequences, on the grid or on the order of arrival: a sequence's bits depend only on its length.
//
// Arrivals. Empty spans do not arrive. The first one that is not empty also arrives for them, and makes up the
// difference to a power of two. So a slot gets the same number of arrivals in every launch, whatever the lengths, and
// its counter is never reset. The last arrival of a launch is the one that makes the counter a multiple of that power,
// even after the counter wraps at 2^32. Each CTA of a cluster has a separate counter, since it adds up its own items of
// all spans.
//
// Memory order. Same as in fixup.cuh: a barrier orders the stores of all threads before thread 0's atom.acq_rel.gpu, a
// second one orders their loads after it. Slots are read with L1 bypassed. Data sent in a cluster is visible after the
// receiver's barrier.
#pragma once
#include "products.cuh"

constexpr int kFinishBarrier = 1;

// Synchronises all threads that finish tasks; returns whether `flag` is set for any of them.
__device__ __forceinline__ bool any_of_finishers(bool flag) {
  if constexpr (kBoundsWaits) return barrier_or<kFinishThreads>(kFinishBarrier, flag);
  barrier_sync<kFinishThreads>(kFinishBarrier);
  return false;
}

// Four sums of a column, and the maximum and normaliser that they belong to.
struct Part {
  float4 sums;
  float maximum, normaliser;
};

__device__ __forceinline__ Part nothing() { return {make_float4(0, 0, 0, 0), minus_infinity(), 0}; }

// Adds `kCount` parts in order.
template <int kCount>
__device__ __forceinline__ void add_parts(Part& to, const Part (&parts)[kCount]) {
  float most = to.maximum;
#pragma unroll
  for (int i = 0; i < kCount; ++i) most = fmaxf(most, parts[i].maximum);
  const float base = most == minus_infinity() ? 0.0f : most;
  const float kept = exp2_approx(to.maximum - base);
  to.sums = make_float4(to.sums.x * kept, to.sums.y * kept, to.sums.z * kept, to.sums.w * kept);
  to.normaliser *= kept;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float weight = exp2_approx(parts[i].maximum - base);
    to.sums.x += weight * parts[i].sums.x;
    to.sums.y += weight * parts[i].sums.y;
    to.sums.z += weight * parts[i].sums.z;
    to.sums.w += weight * parts[i].sums.w;
    to.normaliser += weight * parts[i].normaliser;
  }
  to.maximum = most;
}

// Four elements of the result; zeros if the query sees no token.
__device__ __forceinline__ void store_result(const AttentionArgs& args, const AttentionTask& task, int column, int dim,
                                             const Part& part) {
  const float factor = part.normaliser == 0.0f ? 0.0f : 1.0f / part.normaliser;
  const u32 low = Element::narrow_two(part.sums.x * factor, part.sums.y * factor);
  const u32 high = Element::narrow_two(part.sums.z * factor, part.sums.w * factor);
  u32* words = reinterpret_cast<u32*>(args.out + column_offset(args, task, task.block() * kColumns + column) + dim);
  words[0] = low, words[1] = high;
}

// Stores one warp's sums to shared memory; `warp` is its number in the order of the sum.
__device__ __forceinline__ void leave_sums(unsigned char* shared, int warp, Softmax& softmax) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* sums = reinterpret_cast<float*>(shared + kSumsOffset) + warp * kLiveColumns * kSumStride;
  float2* stats = reinterpret_cast<float2*>(shared + kStatsOffset) + warp * kLiveColumns;
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = 8 * group + lane % 4 * 2 + half;
      float normaliser = softmax.normalisers[group][half];
      normaliser += __shfl_xor_sync(0xFFFFFFFFu, normaliser, 4);
      normaliser += __shfl_xor_sync(0xFFFFFFFFu, normaliser, 8);
      normaliser += __shfl_xor_sync(0xFFFFFFFFu, normaliser, 16);
      if (column >= kLiveColumns) continue;
      if (lane / 4 == 0) stats[column] = {softmax.maxima[group][half], normaliser};
#pragma unroll
      for (int step = 0; step < kDimSteps; ++step) {
        sums[column * kSumStride + 16 * step + lane / 4] = softmax.sums[group][step][half];
        sums[column * kSumStride + 16 * step + lane / 4 + 8] = softmax.sums[group][step][half + 2];
      }
    }
  }
}

// Adds one thread's four elements over the first `num_warps` warps.
__device__ __forceinline__ Part sum_of_warps(const unsigned char* shared, int num_warps, int column, int dim) {
  const float* sums = reinterpret_cast<const float*>(shared + kSumsOffset) + column * kSumStride + dim;
  const float2* stats = reinterpret_cast<const float2*>(shared + kStatsOffset) + column;
  Part parts[kMathWarps];
#pragma unroll
  for (int warp = 0; warp < kMathWarps; ++warp) {
    parts[warp] = nothing();
    if (warp < num_warps) {
      const float2 of_warp = stats[warp * kLiveColumns];
      parts[warp] = {*reinterpret_cast<const float4*>(sums + warp * kLiveColumns * kSumStride), of_warp.x, of_warp.y};
    }
  }
  Part sum = nothing();
  add_parts(sum, parts);
  return sum;
}

// The items of a task that one CTA of a cluster owns.
struct Share {
  int first, end;

  __device__ __forceinline__ int size() const { return max(end - first, 0); }
  // Whether the item is the share's first item of its column; data that exists once per column is sent with it.
  __device__ __forceinline__ bool begins_column(int item) const { return item == first || item % kVectors == 0; }
  __device__ __forceinline__ int num_columns() const {
    return size() == 0 ? 0 : (end - 1) / kVectors - first / kVectors + 1;
  }
};

__device__ __forceinline__ Share share_of(int rank, int num_items) {
  const int size = (num_items + kCluster - 1) / kCluster;
  return {min(rank * size, num_items), min((rank + 1) * size, num_items)};
}

// Sends one item to the CTA that owns it.
__device__ __forceinline__ void send(const Ring& ring, int buffer, int item, int num_items, const Part& part) {
  const int owner = item / ((num_items + kCluster - 1) / kCluster);
  const Share share = share_of(owner, num_items);
  const u32 own = ring.base + kReceivedOffset + buffer * kReceivedBytes + cluster_rank() * kFromOneBytes;
  const u32 there = address_in_cta(own, owner), barrier = address_in_cta(ring.received(buffer), owner);
  const float four[4] = {part.sums.x, part.sums.y, part.sums.z, part.sums.w};
  store_async(there + 16 * (item - share.first), four, barrier);
  if (share.begins_column(item))
    store_async_two(there + 16 * kShare + 8 * (item / kVectors), part.maximum, part.normaliser, barrier);
}

// Combines what all ranks have sent for one of the CTA's own items.
__device__ __forceinline__ Part sum_of_ranks(const Ring& ring, int buffer, int item, const Share& share) {
  const u32 received = ring.base + kReceivedOffset + buffer * kReceivedBytes;
  Part sum = nothing();
#pragma unroll
  for (int first = 0; first < kCluster; first += 8) {
    Part parts[kCluster < 8 ? kCluster : 8];
#pragma unroll
    for (int i = 0; i < min(kCluster, 8); ++i) {
      const u32 from = received + (first + i) * kFromOneBytes;
      const float2 stats = load_shared_two(from + 16 * kShare + 8 * (item / kVectors));
      parts[i] = {load_shared_four(from + 16 * (item - share.first)), stats.x, stats.y};
    }
    add_parts(sum, parts);
  }
  return sum;
}

__device__ __forceinline__ float* partial_of(const AttentionArgs& args, const AttentionTask& task, int span) {
  return args.partials + (static_cast<long long>(args.slot(task)) * args.num_spans + span) * kPartialFloats;
}

// The position of a span's maximum and normaliser for a column, in the part of this CTA's rank.
__device__ __forceinline__ int stats_place(int column) { return kColumns * kHeadDim + 2 * (cluster_rank() * kColumns + column); }

__device__ __forceinline__ Part sum_of_spans(const float* first, int num_spans, int column, int dim) {
  Part sum = nothing();
#pragma unroll 1
  for (int span = 0; span < num_spans; span += kPartsAtOnce) {
    Part parts[kPartsAtOnce];
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      parts[i] = nothing();
      if (span + i < num_spans) {
        const float* part = first + static_cast<long long>(span + i) * kPartialFloats;
        const float2 stats = load_past_l1(reinterpret_cast<const float2*>(part + stats_place(column)));
        parts[i] = {load_past_l1(reinterpret_cast<const float4*>(part + column * kHeadDim + dim)), stats.x, stats.y};
      }
    }
    add_parts(sum, parts);
  }
  return sum;
}

// Stores one item of a span: to the result if it is the only span, otherwise to the slot.
__device__ __forceinline__ void leave_item(const AttentionArgs& args, const TaskInHand& hand, const Share& share, int item,
                                           bool is_alone, const Part& sum) {
  const int column = item / kVectors, dim = item % kVectors * 4;
  if (is_alone) return store_result(args, hand.task, column, dim, sum);
  float* part = partial_of(args, hand.task, hand.task.span());
  __stcg(reinterpret_cast<float4*>(part + column * kHeadDim + dim), sum.sums);
  if (share.begins_column(item)) *reinterpret_cast<float2*>(part + stats_place(column)) = {sum.maximum, sum.normaliser};
}

// Called by all threads that finish tasks: the span arrives; the last span to arrive adds up this CTA's items.
__device__ inline void arrive(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, unsigned char* shared,
                              int number, int thread, const Share& share, const LiveSpans& live) {
  u32* flag = reinterpret_cast<u32*>(shared + kFlagOffset);
  const u32 arrivals = hand.task.span() == live.first ? args.arrivals_per_launch - live.count() + 1 : 1;
  barrier_sync<kFinishThreads>(kFinishBarrier);
  if (thread == 0) {
    u32* counter = args.arrivals + static_cast<long long>(args.slot(hand.task)) * kCluster + cluster_rank();
    const u32 now = fetch_add_acq_rel_gpu(counter, arrivals) % args.arrivals_per_launch + arrivals;
    *flag = live.count() > 1 && now == args.arrivals_per_launch;
    if constexpr (kBoundsWaits) {  // clusters have read different lengths
      if (now > args.arrivals_per_launch) give_up(ring.stopped(), word_of(kForArrivals, number), now, args.arrivals_per_launch);
    }
  }
  barrier_sync<kFinishThreads>(kFinishBarrier);
  stamp(args, kArrived, number, thread == 0);
  if (*flag == 0) return;
  for (int item = share.first + thread; item < share.end; item += kFinishThreads) {
    const int column = item / kVectors, dim = item % kVectors * 4;
    const float* first = partial_of(args, hand.task, live.first);
    store_result(args, hand.task, column, dim, sum_of_spans(first, live.count(), column, dim));
  }
  stamp(args, kCombined, number, thread == 0);
}

// Called by all threads that finish tasks: combines the sums of a task's warps, and stores them to the slot or to the
// result. False for all threads if the CTA has aborted.
__device__ inline bool finish_task(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, unsigned char* shared,
                                   int number, int thread) {
  const int num_items = columns_of(args, hand.task) * kVectors;
  const LiveSpans live = live_spans(args, hand.length);
  const int num_warps = min(hand.num_tiles, kTeams) * kSliceWarps;
  const Share share = share_of(cluster_rank(), num_items);
  const bool is_empty = !live.has(hand.task.span());  // only a cluster's first task may be empty
  const int buffer = number % 2;
  if constexpr (kCluster > 1) {
    if (number == 0) cluster_wait();
    if (thread == 0) {
      const int bytes = 16 * share.size() + 8 * share.num_columns();
      mbarrier_arrive_expect(ring.received(buffer), kCluster * bytes);
    }
  }
  for (int item = thread; item < num_items; item += kFinishThreads) {
    const Part sum = sum_of_warps(shared, num_warps, item / kVectors, item % kVectors * 4);
    if constexpr (kCluster > 1) {
      send(ring, buffer, item, num_items, sum);
    } else if (!is_empty) {
      leave_item(args, hand, share, item, live.count() == 1, sum);
    }
  }
  if constexpr (kFinishWarps > 0) {
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(ring.sums_empty());
  }
  stamp(args, kMerged, number, thread == 0);
  if constexpr (kCluster > 1) {
    const bool has_all = wait_phase<true>(args, ring, ring.received(buffer), number / 2 & 1, kForCluster, number);
    for (int item = share.first + thread; has_all && !is_empty && item < share.end; item += kFinishThreads)
      leave_item(args, hand, share, item, live.count() == 1, sum_of_ranks(ring, buffer, item, share));
    if (any_of_finishers(!has_all)) return false;  // the buffer is read before the next task's items are sent
    if (args.num_spans == 1) stamp(args, kCombined, number, thread == 0);
  }
  if (args.num_spans > 1 && !is_empty) arrive(args, ring, hand, shared, number, thread, share, live);
  return true;
}
