// From the warps' sums to a row of the result: warps of a CTA meet in shared memory, chunks of a context in the workspace.
//
// Layout. Behind the ring's barriers lie the sums of each warp, column by column, kSumStride floats each; then maximum and
// normaliser of each warp and column. A slot of the workspace is a block of columns of one KV head of one sequence. Of
// each chunk it has kColumns * kHeadDim sums, then maximum and normaliser of each column. It has room for all chunks of
// the longest context.
//
// Who waits for whom: nobody waits for another CTA. A chunk stores its sums and counts itself in. The last one to arrive
// adds up all that are not empty. A chunk that is alone stores the result itself.
//
// Order of the sum. Slices of a chunk by the number of the warp, chunks by their number, from the slot, the last one's own
// too. Neither depends on other sequences, on the grid or on who came last: a sequence's bits follow from its length.
//
// Arrivals. Empty chunks do not arrive. Chunk 0, which is never empty, arrives for them, and for what is missing to a
// power of two. So a slot gets the same arrivals in every launch, whatever the lengths, and its counter is never reset.
// The last arrival of a launch is the one that makes the counter a multiple of that power, also behind 2^32.
//
// Memory order. As in fixup.cuh: a barrier orders the stores of all threads before thread 0's atom.acq_rel.gpu, a second
// one orders their loads after it. Slots are read past L1.
#pragma once
#include "products.cuh"

constexpr int kSumStride = kHeadDim + 4;  // floats: lanes of a store are in different banks
constexpr int kSumsOffset = kRingBytes + kBarrierBytes;
constexpr int kStatsOffset = kSumsOffset + 4 * kMathWarps * kColumns * kSumStride;
constexpr int kFlagOffset = kStatsOffset + 8 * kMathWarps * kColumns;
constexpr int kAttentionSmem = kFlagOffset + 16;
static_assert(kAttentionSmem <= 232448, "more than a CTA of sm_90 has");
constexpr int kPartialFloats = kColumns * (kHeadDim + 2);
constexpr int kChunksAtOnce = 8;  // of a sum over chunks: loads that are under way together
constexpr int kMathBarrier = 1;

// Four sums of a column, and the maximum and normaliser that they belong to.
struct Part {
  float4 sums;
  float maximum, normaliser;
};

__device__ __forceinline__ Part nothing() { return {make_float4(0, 0, 0, 0), minus_infinity(), 0}; }

// Adds `kCount` parts in their order.
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

// Four elements of the result; zeros where a query sees no token.
__device__ __forceinline__ void store_result(const AttentionArgs& args, const AttentionTask& task, int column, int dim,
                                             const Part& part) {
  const float factor = part.normaliser == 0.0f ? 0.0f : 1.0f / part.normaliser;
  const u32 low = pack_two<kBf16>(part.sums.x * factor, part.sums.y * factor);
  const u32 high = pack_two<kBf16>(part.sums.z * factor, part.sums.w * factor);
  u32* words = reinterpret_cast<u32*>(args.out + column_offset(args, task, task.block() * kColumns + column) + dim);
  words[0] = low, words[1] = high;
}

// One warp's sums to shared memory.
__device__ __forceinline__ void leave_sums(unsigned char* shared, int warp, Softmax& softmax) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* sums = reinterpret_cast<float*>(shared + kSumsOffset) + warp * kColumns * kSumStride;
  float2* stats = reinterpret_cast<float2*>(shared + kStatsOffset) + warp * kColumns;
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = 8 * group + lane % 4 * 2 + half;
      float normaliser = softmax.normalisers[group][half];
      normaliser += __shfl_xor_sync(0xFFFFFFFFu, normaliser, 4);
      normaliser += __shfl_xor_sync(0xFFFFFFFFu, normaliser, 8);
      normaliser += __shfl_xor_sync(0xFFFFFFFFu, normaliser, 16);
      if (lane / 4 == 0) stats[column] = {softmax.maxima[group][half], normaliser};
#pragma unroll
      for (int step = 0; step < kDimSteps; ++step) {
        sums[column * kSumStride + 16 * step + lane / 4] = softmax.sums[group][step][half];
        sums[column * kSumStride + 16 * step + lane / 4 + 8] = softmax.sums[group][step][half + 2];
      }
    }
  }
}

// One thread's four sums of the first `num_warps` warps.
__device__ __forceinline__ Part sum_of_warps(const unsigned char* shared, int num_warps, int column, int dim) {
  const float* sums = reinterpret_cast<const float*>(shared + kSumsOffset) + column * kSumStride + dim;
  const float2* stats = reinterpret_cast<const float2*>(shared + kStatsOffset) + column;
  Part parts[kMathWarps];
#pragma unroll
  for (int warp = 0; warp < kMathWarps; ++warp) {
    parts[warp] = nothing();
    if (warp < num_warps) {
      const float2 of_warp = stats[warp * kColumns];
      parts[warp] = {*reinterpret_cast<const float4*>(sums + warp * kColumns * kSumStride), of_warp.x, of_warp.y};
    }
  }
  Part sum = nothing();
  add_parts(sum, parts);
  return sum;
}

__device__ __forceinline__ float* partial_of(const AttentionArgs& args, const AttentionTask& task, int chunk) {
  return args.partials + (static_cast<long long>(args.slot(task)) * args.num_chunks + chunk) * kPartialFloats;
}

__device__ __forceinline__ Part sum_of_chunks(const float* first, int num_chunks, int column, int dim) {
  Part sum = nothing();
#pragma unroll 1
  for (int chunk = 0; chunk < num_chunks; chunk += kChunksAtOnce) {
    Part parts[kChunksAtOnce];
#pragma unroll
    for (int i = 0; i < kChunksAtOnce; ++i) {
      parts[i] = nothing();
      if (chunk + i < num_chunks) {
        const float* part = first + static_cast<long long>(chunk + i) * kPartialFloats;
        const float2 stats = load_past_l1(reinterpret_cast<const float2*>(part + kColumns * kHeadDim) + column);
        parts[i] = {load_past_l1(reinterpret_cast<const float4*>(part + column * kHeadDim + dim)), stats.x, stats.y};
      }
    }
    add_parts(sum, parts);
  }
  return sum;
}

// All math threads: a task's sums to the slot, or to the result.
__device__ inline void finish_task(const AttentionArgs& args, const TaskInHand& hand, unsigned char* shared, int num_warps,
                                   Softmax& softmax) {
  constexpr int kVectors = kHeadDim / 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int num_columns = min(args.num_columns() - hand.task.block() * kColumns, kColumns);
  const int live_chunks = max((hand.length + args.chunk_tokens - 1) / args.chunk_tokens, 1);
  const bool is_empty = hand.num_tokens == 0 && hand.task.chunk() > 0;  // a CTA's first task may be
  barrier_sync<kMathThreads>(kMathBarrier);                              // the sums of the task before are read
  if (thread / 32 < num_warps) leave_sums(shared, thread / 32, softmax);
  barrier_sync<kMathThreads>(kMathBarrier);
  if (is_empty) return;
  for (int i = thread; i < num_columns * kVectors; i += kMathThreads) {
    const int column = i / kVectors, dim = i % kVectors * 4;
    const Part sum = sum_of_warps(shared, num_warps, column, dim);
    if (live_chunks == 1) {
      store_result(args, hand.task, column, dim, sum);
    } else {
      float* part = partial_of(args, hand.task, hand.task.chunk());
      __stcg(reinterpret_cast<float4*>(part + column * kHeadDim + dim), sum.sums);
      if (dim == 0) reinterpret_cast<float2*>(part + kColumns * kHeadDim)[column] = {sum.maximum, sum.normaliser};
    }
  }
  stamp(args, kMerged, thread == 0);
  if (args.num_chunks == 1) return;
  u32* flag = reinterpret_cast<u32*>(shared + kFlagOffset);
  const u32 arrivals = hand.task.chunk() == 0 ? args.arrivals_per_launch - live_chunks + 1 : 1;
  barrier_sync<kMathThreads>(kMathBarrier);
  if (thread == 0) {
    const u32 before = fetch_add_acq_rel_gpu(args.arrivals + args.slot(hand.task), arrivals);
    *flag = live_chunks > 1 && (before + arrivals) % args.arrivals_per_launch == 0;
  }
  barrier_sync<kMathThreads>(kMathBarrier);
  stamp(args, kArrived, thread == 0);
  if (*flag == 0) return;
  for (int i = thread; i < num_columns * kVectors; i += kMathThreads) {
    const int column = i / kVectors, dim = i % kVectors * 4;
    const float* first = partial_of(args, hand.task, 0);
    store_result(args, hand.task, column, dim, sum_of_chunks(first, live_chunks, column, dim));
  }
  stamp(args, kCombined, thread == 0);
}
