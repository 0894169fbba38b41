// The warps that read in band: they poll a mailbox (mailbox.cuh), and fill stages of inputs in place of the copy
// engine.
//
// Each of the kReaderWarps warps fills every kReaderWarps-th stage of a task: it polls the stage's elements until all
// have arrived, then writes them to shared memory in the copy engine's swizzled layout. Rows outside the matrix are
// left unchanged: they affect only sums that are not stored. A stage is filled by one of these warps, or by the inputs'
// warp.
//
// Phases. Each of these warps, and the inputs' warp, processes every slot of the ring in turn, even if another one
// fills it: it waits until the slot is free, and arrives at `full`. A stage is full only after all of them have
// arrived. So a slot's barriers never advance without a late warp, which would otherwise mistake a parity for that of
// another phase.
//
// Waits. A reader waits for a slot of the ring, then for elements, and processes the tasks in the order in which the
// CTA took them. It waits for no signal: the helper warp does that, before the epilogue. A poll that
// exceeds the limit, or sees that the launch is aborted, sets the CTA's flag before it releases the incomplete stage.
// So the math warps, which wait for all stages, see the flag.
//
// Proxies. Stages are written through the generic proxy. Each lane's fence.proxy.async, the warp's barrier and the arrival at
// `full` order that before the tensor cores' reads.
#pragma once
#include "mailbox.cuh"
#include "shared_wgmma.cuh"

constexpr int kFirstReaderWarp = kPrefetchWarp + 1;

#ifdef TUNER_IN_BAND
constexpr int kLoadsOfReader = 8;  // loads of a lane in flight at a time
constexpr int kNoSignal = -1;      // in an abort's record: the missing data were elements

// Eight elements of a stage of an op: their addresses in the mailbox and in the stage.
template <int kOp>
struct StageLoads {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kAcross = kConfig.tile_k / kElementsOfLoad;

  const u16* first;  // address of the tile's first row and the stage's first column
  int columns, k;    // chunks of the stage inside the matrix, and of a row

  __device__ __forceinline__ int across(int number) const { return number % kAcross; }
  __device__ __forceinline__ bool is_inside(int number) const { return across(number) * kElementsOfLoad < columns; }
  __device__ __forceinline__ const u16* place(int number) const {
    return first + static_cast<long long>(number / kAcross) * k + across(number) * kElementsOfLoad;
  }
  __device__ __forceinline__ u32 offset(int number) const {
    const int row = number / kAcross, line = across(number) / 8, unit = across(number) % 8 ^ row % 8;
    return (line * kConfig.tile_m + row) * kLineBytes + unit * 16;
  }
};

// Polls until the lane's elements have arrived, those with numbers lane, lane + 32 and so on below `count`; false for
// all lanes if the launch is aborted. A lane polls only one of its missing elements: polling all of them from all SMs
// would occupy the L2.
template <class Loads>
__device__ __forceinline__ bool poll(const LaunchArgs& args, const Loads& loads, int begin, int count, int task_index,
                                     uint4 (&found)[kLoadsOfReader]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto is_own = [&](int i) { return begin + 32 * i + lane < count && loads.is_inside(begin + 32 * i + lane); };
#pragma unroll
  for (int i = 0; i < kLoadsOfReader; ++i) {
    if (begin + 32 * i >= count) break;
    found[i] = is_own(i) ? load_relaxed_gpu(loads.place(begin + 32 * i + lane)) : inverted(make_uint4(0, 0, 0, 0));
  }
  const long long start = clock64();
  for (u32 polls = 1;; ++polls) {
    const u16* missing = nullptr;
#pragma unroll
    for (int i = 0; i < kLoadsOfReader; ++i) {
      if (begin + 32 * i >= count) break;
      if (missing == nullptr && !are_there(found[i])) missing = loads.place(begin + 32 * i + lane);
    }
    if (__all_sync(0xFFFFFFFFu, missing == nullptr)) return true;
    if (missing != nullptr && are_there(load_relaxed_gpu(missing))) {
#pragma unroll
      for (int i = 0; i < kLoadsOfReader; ++i) {
        if (begin + 32 * i >= count) break;
        if (!are_there(found[i])) found[i] = load_relaxed_gpu(loads.place(begin + 32 * i + lane));
      }
    }
    if (polls % 16 != 0) continue;
    bool is_over = load_relaxed_gpu(&args.workspace->abort.raised) != 0;
    if (!is_over && clock64() - start > args.spin_limit_cycles) {
      raise_abort(args.workspace, task_index, kNoSignal, 0, 0);
      is_over = true;
    }
    if (!__all_sync(0xFFFFFFFFu, !is_over)) return false;
  }
}

// Called by one warp: fills a stage of a task's inputs; returns false if the launch is aborted.
template <int kOp>
__device__ __forceinline__ bool fill_stage(const LaunchArgs& args, u32 stage, int step, int tile_m, u32 epoch, int task_index) {
  using Loads = StageLoads<kOp>;
  const OpArgs& op = args.ops[kOp];
  const int row0 = tile_m * kOps[kOp].tile_m, column0 = step * kOps[kOp].tile_k;
  const u16* mailbox = mailbox_of(args, kInputOf[kOp], epoch & 1);
  const Loads loads{mailbox + static_cast<long long>(row0) * op.k + column0, op.k - column0, op.k};
  const int count = min(op.m - row0, kOps[kOp].tile_m) * Loads::kAcross, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += 32 * kLoadsOfReader) {
    uint4 found[kLoadsOfReader];
    if (!poll(args, loads, begin, count, task_index, found)) return false;
#pragma unroll
    for (int i = 0; i < kLoadsOfReader; ++i) {
      const int number = begin + 32 * i + lane;
      if (begin + 32 * i >= count) break;
      if (number < count) store_shared(stage + loads.offset(number), inverted(found[i]));
    }
  }
  return true;
}

// Called by a reader warp: fills its stages of a task; at all other stages it only arrives.
template <int kOp = 0>
__device__ __forceinline__ void fill_stages(const WgmmaArgs& args, const Shared& shared, const FeedSlot& slot, u32 epoch,
                                            InputRing::Place& input, int reader) {
  if constexpr (kOp < kNumOps) {
    if (slot.task.op != kOp) return fill_stages<kOp + 1>(args, shared, slot, epoch, input, reader);
    const Steps steps = steps_of<kOp>(args.base.plan, args.base.ops[kOp], slot.task);
    const bool reads = is_in_band(args.base, kOp);
#pragma unroll 1
    for (int step = 0; step < steps.count; ++step, input.advance()) {
      shared.inputs.wait_free(input);
      if constexpr (kInputOf[kOp] >= 0) {
        if (reads && step % kReaderWarps == reader) {
          const u32 stage = shared.inputs.stage(input);
          const bool ok = fill_stage<kOp>(args.base, stage, steps[step], slot.task.tile_m, epoch, slot.index);
          if (!ok) *const_cast<volatile int*>(&shared.flags->aborted) = 1;
          fence_proxy_async_shared();
          __syncwarp();
        }
      }
      if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.inputs.full(input));
    }
  }
}

// The loop of a reader warp; called by all of its lanes.
__device__ inline void read_in_band(const WgmmaArgs& args, const Shared& shared) {
  wait_for_prerequisites();
  FeedRing::Place feed;
  InputRing::Place input;
  for (;; feed.advance()) {
    wait_fed(shared.feed, feed);
    const FeedSlot slot = *feed_slot(shared.feed_memory, feed);
    __syncwarp();
    if (threadIdx.x % 32 == 0) release_fed(args.base, shared.feed, feed);
    if (slot.index < 0) return;
    mbarrier_wait(shared_address(&shared.flags->knows_epoch), 0);
    const u32 epoch = *const_cast<volatile u32*>(&shared.flags->epoch);
    fill_stages(args, shared, slot, epoch, input, static_cast<int>(threadIdx.x) / 32 - kFirstReaderWarp);
  }
}
#else
__device__ inline void read_in_band(const WgmmaArgs&, const Shared&) {}
#endif
