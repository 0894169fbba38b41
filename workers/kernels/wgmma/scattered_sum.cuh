// The sums of the parts of a tile, each of which adds up and stores a share of it (reduce-scatter).
//
// Layout. Slots, and the position of a sum in its part, are those of fixup.cuh. The tile is divided into shares as in
// cluster_sum.cuh; part p has the p-th. A part writes the sums of the others' shares, increments the counter of
// arrivals, waits until all parts have arrived, and adds the others' sums of its own share to those in its registers.
// So it writes and reads (P - 1) / P of a tile's sums, whereas the last part in fixup.cuh reads P times as many alone.
//
// Order of the sum: part 0, 1, 2, ..., including its own in sequence, which gives the same bits as fixup.cuh.
//
// Waits: each part waits for the products of all other parts of its tile. So parts must run at the same time: the host
// proves that all queues have the tiles in the same order, and that no queue has two parts of the same tile
// (tuner/core/proof/liveness.py). All CTAs are resident, which queues require anyway. A part arrives after its waits
// for signals, and before those of its epilogue.
//
// Posts. Each part stores a share of the tile and posts for it: an equal number of the tile's posts (posts_of_tile).
//
// Memory order. As in fixup.cuh: stores, a barrier, thread 0's red.release.gpu. Its ld.acquire.gpu that sees all
// arrivals reads from the chain of all of them, and the barrier after it orders the other threads' loads. Slots are
// read with L1 bypassed. Epochs. As in fixup.cuh, a counter grows by the tile's parts in each launch.
//
// Abort. The wait is bounded like those for signals. A part whose wait expires stores NaN; a part whose wait for a
// signal has expired also writes NaN for the others.
#pragma once
#include "cluster_sum.cuh"
#include "fixup.cuh"

// Called by one thread: waits until all parts of the task's tile have stored their sums; returns false if the launch is
// aborted.
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

// Runs in the part with number kRank: stores its sums of all other shares, and adds up its own share. Called by threads
// that hold part of the tile; returns false to all of them if the launch is aborted.
template <int kOp, int kRank>
__device__ __forceinline__ bool scatter_and_add(const LaunchArgs& args, const Task& task, int index, u32 epoch,
                                                float (&acc)[kMaxWgmmaAccumulators], int barrier) {
  using Layout = SumLayout<kOp>;
  constexpr int kParts = sharers<kOp>(), kHolders = Layout::kHolders, kPartVectors = part_size(kOps[kOp]) / 4;
  static_assert(kHolders * WgmmaTile<kOp>::kNumSums == part_size(kOps[kOp]),
                "the threads together hold the whole tile");
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
  constexpr int kLoads = kNumMathGroups == 3 ? 8 : 16;  // vectors of a thread in flight at a time
  constexpr int kTogether = kLoads > kOthers ? kLoads / kOthers : 1;
#pragma unroll
  for (int begin = 0; begin < kVectors; begin += kTogether) {
    __syncwarp();  // the compiler gathers no more loads than these
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

// Processes a part of a task's tile, and stores its share to global memory. Called by all threads of the team; the
// part's number is kRank or higher. `ready` is called before anything is finished.
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
