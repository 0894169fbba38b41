// An intermediate that is its own signal: who reads it polls the data, word by word, and no post stands between.
//
// Layout. In the workspace, for each op whose output is handed over so, two halves [m, n] of 16-bit elements; a launch writes and
// reads that of its epoch's parity. An element is stored with all bits inverted. So a word of two elements is zero if it is
// not there yet, and never else: a finished element is no NaN but 0x7FFF, which is what rounding makes of all NaN. Who
// stores a word in this launch's half stores zero at the same place of the other one, for the launch behind.
//
// Who waits for whom. Each of kReaderWarps warps fills every so many-th stage of the inputs' ring: it loads the stage's words
// until all of them are there, then writes them to the stage as the copy engine would. It waits for no signal. Each word is
// stored by the one task whose tile it belongs to, which is among those that the plan's waits name.
//
// Memory order. Words are stored and loaded relaxed at GPU scope, and each is a value of its own: nothing is read that is
// not checked, so nothing else needs to be ordered. What the launch before left zero is visible behind the wait for that
// launch. The stage is written by the generic proxy, and a proxy fence orders that before the arrival at `full`.
#pragma once
#include "shared_wgmma.cuh"

constexpr int kFirstReaderWarp = kPostWarp + 2;

__device__ __forceinline__ bool are_there(const uint4& four) { return four.x != 0 && four.y != 0 && four.z != 0 && four.w != 0; }

// One warp: a stage of inputs of a task; false if the launch is aborted.
template <int kOp>
__device__ __forceinline__ bool fill_stage(const LaunchArgs& args, u32 stage, int step, int tile_m, u32 epoch, int index) {
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kAcross = kConfig.tile_k / 8, kChunks = kConfig.tile_m * kAcross, kEach = (kChunks + 31) / 32;
  constexpr int kBatch = kEach < 8 ? kEach : 8;
  const OpArgs& op = args.ops[kOp];
  const u16* words = words_of(args, kWordSource[kOp], epoch & 1);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool is_ok = true;
#pragma unroll 1
  for (int first = 0; first < kEach; first += kBatch) {
    uint4 found[kBatch];
    const u16* from[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = lane + 32 * (first + i), row = tile_m * kConfig.tile_m + chunk / kAcross;
      const int column = step * kConfig.tile_k + chunk % kAcross * 8;
      const bool is_inside = chunk < kChunks && row < op.m && column < op.k;
      from[i] = is_inside ? words + static_cast<long long>(row) * op.k + column : nullptr;
      found[i] = is_inside ? load_words(from[i]) : make_uint4(~0u, ~0u, ~0u, ~0u);
    }
    const long long start = clock64();
    for (u32 polls = 1; is_ok; ++polls) {
      const u16* missing = nullptr;  // one of a lane's is polled: all of them by all SMs would be what the L2 reads
#pragma unroll
      for (int i = kBatch - 1; i >= 0; --i) missing = are_there(found[i]) ? missing : from[i];
      if (__all_sync(0xFFFFFFFFu, missing == nullptr)) break;
      if (missing != nullptr && are_there(load_words(missing))) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (!are_there(found[i])) found[i] = load_words(from[i]);
        }
      }
      if (polls % 16 != 0) continue;
      bool is_over = load_relaxed_gpu(&args.workspace->abort.raised) != 0;
      if (!is_over && clock64() - start > args.spin_limit_cycles) {
        raise_abort(args.workspace, index, -2, 0, 0);
        is_over = true;
      }
      is_ok = __all_sync(0xFFFFFFFFu, !is_over);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = lane + 32 * (first + i), row = chunk / kAcross, across = chunk % kAcross;
      const uint4 four = make_uint4(~found[i].x, ~found[i].y, ~found[i].z, ~found[i].w);
      const u32 place = stage + (across / 8 * kConfig.tile_m + row) * kLineBytes + ((across % 8 ^ row % 8) * 16);
      if (chunk < kChunks) store_shared_four(place, four);
    }
  }
  return is_ok;
}

// One of the reader warps: its stages of a task, or past those of a task whose inputs the copy engine brings.
template <int kOp = 0>
__device__ __forceinline__ void fill_stages(const WgmmaArgs& args, const Shared& shared, const Task& task, int index, u32 epoch,
                                            InputRing::Place& input, int reader) {
  if constexpr (kOp < kNumOps) {
    if (task.op != kOp) return fill_stages<kOp + 1>(args, shared, task, index, epoch, input, reader);
    const Steps steps = steps_of<kOp>(args.base.plan, args.base.ops[kOp], task);
    if constexpr (kWordSource[kOp] < 0) {
      input.advance_by(steps.count);
    } else {
#pragma unroll 1
      for (int step = 0; step < steps.count; ++step, input.advance()) {
        if (step % kReaderWarps != reader) continue;
        shared.inputs.wait_free(input);
        const bool is_ok = fill_stage<kOp>(args.base, shared.inputs.stage(input), steps[step], task.tile_m, epoch, index);
        fence_proxy_async_shared();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
          if (!is_ok) shared.flags->aborted = 1;
          mbarrier_arrive(shared.inputs.full(input));
        }
      }
    }
  }
}

__device__ inline void read_words(const WgmmaArgs& args, const Shared& shared) {
  wait_for_prerequisites();
  const int reader = static_cast<int>(threadIdx.x) / 32 - kFirstReaderWarp;
  FeedRing::Place feed;
  InputRing::Place input;
  mbarrier_wait(shared_address(&shared.flags->drawn), 0);
  const u32 epoch = *const_cast<volatile u32*>(&shared.flags->epoch);
  for (;; feed.advance()) {
    wait_fed(shared.feed, feed);
    const FeedSlot slot = *feed_slot(shared.feed_memory, feed);
    __syncwarp();
    if (threadIdx.x % 32 == 0) release_fed(args.base, shared.feed, feed);
    if (slot.index < 0) return;
    fill_stages(args, shared, slot.task, slot.index, epoch, input, reader);
  }
}
