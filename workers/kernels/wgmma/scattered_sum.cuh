// The sums of the parts of a tile, each of which adds up and stores a share of it (reduce-scatter).
//
// Layout. Slots are those of fixup.cuh, and so is a sum's place in its part. The tile is cut into shares as cluster_sum.cuh
// cuts it, part p having the p-th. A part writes the sums that the others finish, counts itself in, waits until all have, and adds
// what they left of its own share to what it has in registers. So it writes and reads (P - 1) / P of a tile's sums, where
// the last one of fixup.cuh reads P times as many by itself, and the others have long gone.
//
// Order of the sum: part 0, 1, 2, ..., the own one in its place: the bits of fixup.cuh.
//
// Waits: each part for the products of all others of its tile. So parts must run at once: the host's proof says
// that queues have the tiles in one order, and no two parts of a tile (tuner/core/proof/liveness.py). All CTAs are resident,
// as queues need it anyway. A part counts itself in after its waits for signals, and before those of its epilogue.
//
// Posts. Each part stores a share of the tile and posts for it: of those that stand for the tile (posts_of_tile) as many as the others.
//
// Memory order. As in fixup.cuh: stores, a barrier, thread 0's red.release.gpu. Its ld.acquire.gpu that sees all arrivals
// reads from the chain of all of them, and the barrier after it orders the other threads' loads. Slots are read past L1.
// Epochs. As there: a counter grows by the tile's parts in each launch.
//
// Abort. The wait is bounded as those for signals are. A part whose wait expires stores NaN, and so does one whose wait for a
// signal expired: it writes NaN for the others.
#pragma once
#include "cluster_sum.cuh"
#include "fixup.cuh"

// One thread: until all parts of the task's tile have left their sums; false if the launch is aborted.
__device__ inline bool wait_for_parts(const LaunchArgs& args, const Task& task, int index, u32 epoch) {
  const u32 base = epoch * task.num_parts, target = base + task.num_parts;
  const u32* address = arrivals_of(args, task);
  const long long start = clock64();
  for (u32 polls = 1;; ++polls) {
    const u32 seen = load_acquire_gpu(address);
    if (has_reached(seen, target)) return true;
    if (polls % 16 != 0) continue;
    if (load_relaxed_gpu(&args.workspace->abort.raised) != 0) return false;
    if (clock64() - start > args.spin_limit_cycles) {
      raise_abort(args.workspace, index, args.plan.num_signals + task.slot, seen - base, task.num_parts);
      return false;
    }
  }
}

// Of the part whose number is kRank: its sums of all other shares left, and its own share added up. Threads that hold some
// of the tile; false, for all of them alike, if the launch is aborted.
template <int kOp, int kRank>
__device__ __forceinline__ bool scatter_and_add(const LaunchArgs& args, const Task& task, int index, u32 epoch,
                                                float (&acc)[kMaxWgmmaAccumulators], int barrier) {
  using Layout = SumLayout<kOp>;
  constexpr int kParts = sharers<kOp>(), kHolders = Layout::kHolders, kPartVectors = part_size(kOps[kOp]) / 4;
  static_assert(kHolders * WgmmaTile<kOp>::kNumSums == part_size(kOps[kOp]), "the threads hold the tile");
  float4* const slot = sums_of(args, task) + team_thread();
#pragma unroll
  for (int i = 1; i < kParts; ++i) {
    const int to = (kRank + i) % kParts;
#pragma unroll
    for (int v = 0; v < Layout::kMost; ++v) {
      if (v >= Layout::num_vectors(to)) continue;
      const int first = Layout::index(to, v);
      __stcg(slot + kRank * kPartVectors + first / 4 * kHolders,
             make_float4(acc[first], acc[first + 1], acc[first + 2], acc[first + 3]));
    }
  }
  barrier_sync<kHolders>(barrier);
  bool has_failed = false;
  if (team_thread() == 0) {
    add_release_gpu(arrivals_of(args, task), 1);
    has_failed = !wait_for_parts(args, task, index, epoch);
  }
  if (barrier_or<kHolders>(barrier, has_failed)) return false;
  constexpr int kVectors = Layout::num_vectors(kRank), kOthers = kParts - 1;
  constexpr int kLoads = kNumMathGroups == 3 ? 8 : 16;  // vectors of a thread under way at a time
  constexpr int kTogether = kLoads > kOthers ? kLoads / kOthers : 1;
#pragma unroll
  for (int begin = 0; begin < kVectors; begin += kTogether) {
    __syncwarp();  // no more loads than these are gathered
    float4 read[kTogether][kOthers];
#pragma unroll
    for (int v = 0; v < kTogether && begin + v < kVectors; ++v) {
#pragma unroll
      for (int other = 0; other < kOthers; ++other) {
        const int part = other + (other >= kRank);
        read[v][other] =
            load_past_l1(slot + part * kPartVectors + Layout::index(kRank, begin + v) / 4 * kHolders);
      }
    }
#pragma unroll
    for (int v = 0; v < kTogether && begin + v < kVectors; ++v) {
      float* const own = acc + Layout::index(kRank, begin + v);
      float sum[4] = {};
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (part == kRank) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] += own[i];
        } else {
          const float4& theirs = read[v][part - (part > kRank)];
          sum[0] += theirs.x, sum[1] += theirs.y, sum[2] += theirs.z, sum[3] += theirs.w;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = sum[i];
    }
  }
  return true;
}

// A part of a task's tile, to global memory what it finishes of it. All threads of the team; kRank or a later one is the
// part's number. `ready` is called before anything is finished.
template <int kOp, int kRank = 0, class Ready>
__device__ __forceinline__ void scatter_and_store(float (&acc)[kMaxWgmmaAccumulators], const LaunchArgs& args,
                                                  const FeedSlot& slot, u32 epoch, int barrier, const Ready& ready) {
  if constexpr (kRank < sharers<kOp>() - 1) {
    if (slot.task.part != kRank) return scatter_and_store<kOp, kRank + 1>(acc, args, slot, epoch, barrier, ready);
  }
  if (team_thread() < SumLayout<kOp>::kHolders &&
      !scatter_and_add<kOp, kRank>(args, slot.task, slot.index, epoch, acc, barrier))
    WgmmaTile<kOp>::fill(acc, __int_as_float(0x7FFFFFFF));
  const RowNorm norm = ready();
  store_groups<kOp, Share<kOp, kRank>::kFirst, Share<kOp, kRank>::kEnd>(acc, args.ops[kOp], slot.task, norm, {});
}
