// Decode attention: out = softmax(scale Q K^T) V over a contiguous or a paged cache, for a few new tokens of each
// sequence. A window lets a query see only the last tokens; a soft cap bends large scores.
//
// Roles. The last warp, or the last two, load tasks, queries and cache (request_attention.cuh). The first warps
// multiply: teams of them take a task's tiles in turn, and each warp multiplies its own 16 tokens (products.cuh). They
// pass their sums to the warps in between, which finish the task (merge_attention.cuh) while the next one is
// multiplied. Without such warps, the multiplying warps finish it themselves.
//
// Launches. Queries, cache, lengths and page numbers may be written by the previous launch, so none of them is read
// before griddepcontrol.wait. The plan is read before it. Weights of the next launch depend on no launch. They may be
// prefetched into the L2 before that wait, since writes become visible in the L2 (see dependent_launch.cuh).
//
// If few clusters have tasks, there may be others that only prefetch weights early, so that clusters with keys to load
// need few requests for weights.
//
// Liveness. CTAs of a cluster run at the same time and wait for each other's sums. No cluster waits for another, so the
// grid may have any size. A length that changes while the launch runs may break this: each wait is bounded
// (wait_attention.cuh).
#pragma once
#include "merge_attention.cuh"
#include "request_attention.cuh"

// Teams take tiles and stages of the ring in turn: a task begins with the team whose stage is next. So a stage always
// belongs to the same team, even if earlier tasks had a number of tiles that is not a multiple of the teams. Returns
// the team's first tile of a task, which is also the team's position in the order of the sums; `place` is the position
// of the task's first tile in the ring.
__device__ __forceinline__ int first_of_team(u32 place) {
  return static_cast<int>((threadIdx.x / (32 * kSliceWarps) + kTeams - place % kTeams) % kTeams);
}

__device__ __forceinline__ int slice_of_warp() { return static_cast<int>(threadIdx.x) / 32 % kSliceWarps; }

// Called by all math warps: multiplies a task's tiles, in the order of the ring, starting at its `place`-th tile.
__device__ __forceinline__ void multiply_task(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int number,
                                              int place, const Queries& queries, Softmax& softmax) {
  clear(softmax);
#pragma unroll 1
  for (int tile = first_of_team(place); tile < hand.num_tiles; tile += kTeams) {
    attend_slice(args, ring, hand, number, tile, place + tile, slice_of_warp(), queries, softmax);
    stamp(args, kFirstK, number, tile == 0 && threadIdx.x % (32 * kSliceWarps) == 0);
  }
  stamp(args, kLastTile, number, threadIdx.x == 0);
}

// Called by all threads that multiply; returns whether they have finished a task.
__device__ inline bool attend_all(const AttentionArgs& args, const Ring& ring, unsigned char* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  Queries queries;
  Softmax softmax;
  int place = 0;
#pragma unroll 1
  for (int number = 0;; ++number) {
    TaskInHand hand{};
    bool goes_on = at_hand(args, ring, number, hand);
    const bool is_end = hand.num_tiles < 0;
    if (goes_on && !is_end) {
      load_queries(ring, number % kTaskSlots, columns_of(args, hand.task), queries);
      hand_back(ring, number);
      stamp(args, kTaken, number, thread == 0);
      stamp_task(args, hand.task, number, thread == 0);
      multiply_task(args, ring, hand, number, place, queries, softmax);
    }
    if constexpr (kFinishWarps == 0) goes_on = !any_of_finishers(!goes_on || has_given_up(ring));  // previous sums have been read
    if (!goes_on || is_end) return kFinishWarps == 0 && number > 0;
    const int first = first_of_team(place), from = first * kSliceWarps + slice_of_warp();
    const bool has_sums = first < hand.num_tiles;
    place += hand.num_tiles;
    if constexpr (kFinishWarps == 0) {
      if (has_sums) leave_sums(shared, from, softmax);
      barrier_sync<kFinishThreads>(kFinishBarrier);
      if (!finish_task(args, ring, hand, shared, number, thread)) return true;
    } else {
      const u32 parity = (number & 1) ^ 1;
      if (number > 0 && !all_agree(wait_phase(args, ring, ring.sums_empty(), parity, kForSumsRead, number))) return false;
      if (has_sums) leave_sums(shared, from, softmax);
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(ring.sums_full());
    }
  }
}

// Called by the warps that finish tasks; returns whether they have finished one.
__device__ inline bool finish_all(const AttentionArgs& args, const Ring& ring, unsigned char* shared) {
#pragma unroll 1
  for (int number = 0;; ++number) {
    TaskInHand hand{};
    bool goes_on = at_hand(args, ring, number, hand);
    const bool is_end = hand.num_tiles < 0;
    if (goes_on && !is_end) {
      hand_back(ring, number);
      goes_on = wait_phase(args, ring, ring.sums_full(), number & 1, kForSums, number) && !has_given_up(ring);
    }
    if constexpr (kBoundsWaits) goes_on = !any_of_finishers(!goes_on);
    if (!goes_on || is_end) return number > 0;
    if (!finish_task(args, ring, hand, shared, number, static_cast<int>(threadIdx.x) - kMathThreads)) return true;
  }
}

// Called last, by all threads of the CTA. `has_met`: whether a thread has waited for its cluster to begin; `raised`, in
// one thread: whether an earlier launch was aborted; `asked`, in requesting threads: how much they have requested.
__device__ inline void end_cta(const AttentionArgs& args, const Ring& ring, bool has_met, u32 raised, const Requested& asked) {
  if (raised != 0) compare_and_swap_shared(ring.stopped(), 0, kBehindAbort);
  __syncthreads();
  if (const u32 word = load_shared_word(ring.stopped()); word != 0) {
    if (threadIdx.x == 0) record_abort(args, ring, word);
    if (threadIdx.x >= kRequester) outlast_copies(args, ring, asked.tasks, asked.tiles);
    const long long rows = static_cast<long long>(args.sequences) * args.new_tokens * args.num_kv_heads * args.query_heads;
    u32* words = reinterpret_cast<u32*>(args.out);
    constexpr u32 kTwoNans = Element::kNan * 0x10001u;
    for (long long i = threadIdx.x; i < rows * (kHeadDim / 2); i += kAttentionThreads) words[i] = kTwoNans;
  }
  if constexpr (kCluster > 1) {
    if (!has_met) cluster_wait();
    cluster_arrive();
    cluster_wait();
  }
}

extern "C" __global__ void TUNER_ATTENTION_CLUSTER __launch_bounds__(kBoundThreads, 1)
    tuner_attention(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{shared_address(shared)};
  const int thread = static_cast<int>(threadIdx.x);
  launch_dependents();
  if (cluster_number() >= args.num_queues) {
    if (thread >= kRequester && brings_tasks()) prefetch_next_weights(args.next);
    return;
  }
  stamp_edge(args, kBeganCycles, kBeganNs, thread == 0);
  if (thread == kRequester) {
    init_ring(ring);
    prepare_copies(args);
  }
  __syncthreads();
  if constexpr (kCluster > 1) cluster_arrive();  // others may send once all threads have reached this point
  OwnTasks own{};
  if (thread >= kRequester) {
    if (args.next.is_early != 0 && brings_tasks()) prefetch_next_weights(args.next);
    own = know_plan(args);
  }
  wait_for_prerequisites();
  forget_stamps(args);
  u32 raised = 0;
  bool has_met = false;
  Requested asked{};
  if (thread >= kRequester) {
    if constexpr (kBoundsWaits) {
      if (thread == kRequester) raised = load_relaxed_gpu(&args.abort->raised);  // used only at the end
    }
    request_all(args, ring, own, asked);
  } else if (thread < kMathThreads) {
    has_met = attend_all(args, ring, shared);
  } else {
    has_met = finish_all(args, ring, shared);
  }
  stamp_edge(args, kEndedCycles, kEndedNs, thread == (kFinishWarps == 0 ? 0 : kMathThreads));
  if constexpr (kBoundsWaits) end_cta(args, ring, has_met, raised, asked);
}
