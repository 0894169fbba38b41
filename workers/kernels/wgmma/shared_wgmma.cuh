// The warp-specialised kernel's parameter, and its shared memory.
//
// The required words of a CTA's first task are in the parameter: otherwise they would be loaded from DRAM, in a
// sequence of dependent loads, before the first byte of weights could be requested.
#pragma once
#include "cluster_sum.cuh"

struct FirstTask {
  int tile_m, tile_n;
  signed char op;  // below 0: not known
  unsigned char part, num_parts;
  bool waits;
  unsigned short first_step, num_steps;
};
constexpr int kMaxCtas = 160;  // or clusters: the host refuses a larger grid, whatever its assignment

// The common arguments of all engines, the CTAs' first tasks (of queues and dealt waves), and the tensor maps of each op's inputs [m,
// k] and weights [n, k].
struct OperandArgs {
  LaunchArgs base;
  alignas(64) FirstTask first_tasks[kMaxCtas];
  TensorMap input_maps[kNumMaps];
  TensorMap weight_maps[kNumMaps];
};

// The tensor maps of each op's C [m, n], if the copy engine stores tiles.
template <bool kAreThere>
struct OutputMaps {
  static constexpr int kCount = kNumMaps;
  TensorMap maps[kNumMaps];
  __device__ __forceinline__ const TensorMap* output_map(int map) const { return &maps[map]; }
};
template <>
struct OutputMaps<false> {
  static constexpr int kCount = 0;
  __device__ __forceinline__ const TensorMap* output_map(int) const { return nullptr; }
};

// The launch parameter; missing maps take no space in it.
struct WgmmaArgs : OperandArgs, OutputMaps<kTmaEpilogue> {};
static_assert(sizeof(WgmmaArgs) == sizeof(OperandArgs) + WgmmaArgs::kCount * sizeof(TensorMap),
              "the layout is the one that the host packs");
static_assert(sizeof(FirstTask) == 16, "the host packs FirstTask into 16 bytes");

struct Flags {
  int aborted;  // a wait of the task, or of an earlier one, has expired: its operands are invalid
  u32 epoch;    // of the launch
  u64 ready;    // an mbarrier: a phase for each task that waits, over when its first waits are
  u32 num_ready;  // tasks whose first waits are over, of those that wait; for a CTA that the cluster's leader feeds
  u64 turn;       // an mbarrier, of two teams: a phase for each task, over when all its products are issued
  u64 stored[kFeedSlots];  // mbarriers: a phase for each task of a slot, over when its tile or part is stored
  u64 requested;  // an mbarrier: one phase, over when the weights of a known first task are requested: startup_prefetch.cuh
  u64 knows_epoch;  // an mbarrier, for warps that read in band: one phase, over when `epoch` has been written
};
static_assert(sizeof(Flags) <= 80, "the host computes the size of shared memory from this");

// The results of the helper warp for the math warps, for each feed slot: two mbarriers, a word, and the factors of a
// tile's rows (beside_wgmma.cuh). They are followed by the memory in which math warps with swapped operands add up
// squares, or exchange numbers for a part of an epilogue.
__device__ constexpr int normed_rows(const OpConfig& op) { return kChainOps[&op - kOps].norm ? op.tile_m : 0; }
__device__ constexpr int exchanged(const OpConfig& op) {
  const int squares = kChainOps[&op - kOps].squares ? kTeamWarps : 0, own = part_exchanges(&op - kOps);
  return op.tile_m * (squares > own ? squares : own);
}
struct Beside {
  static constexpr int kSlotBytes = 32, kFactorBytes = 4 * most_of_ops(normed_rows);
  static constexpr int kTeamBytes = kSwapAb ? 4 * most_of_ops(exchanged) : 0;
  static constexpr int kFactors = kHasLateWaits ? kFeedSlots * kSlotBytes : 0;
  static constexpr int kScratch = kFactors + kFeedSlots * kFactorBytes;
  static constexpr int kBytes = kScratch + kNumTeams * kTeamBytes;

  u32 data;
  unsigned char* memory;

  __device__ __forceinline__ u32 waited(const FeedRing::Place& place) const { return data + place.slot() * kSlotBytes; }
  __device__ __forceinline__ u32 ready(const FeedRing::Place& place) const { return waited(place) + 8; }
  // The first wait of a task that is not known to be over, once all those before k-steps are.
  __device__ __forceinline__ volatile int* next_wait(const FeedRing::Place& place) const {
    return reinterpret_cast<int*>(memory + place.slot() * kSlotBytes + 16);
  }
  __device__ __forceinline__ u32 factors(const FeedRing::Place& place) const {
    return data + kFactors + place.slot() * kFactorBytes;
  }
  __device__ __forceinline__ u32 scratch(int team) const { return data + kScratch + team * kTeamBytes; }

  __device__ void init() const {
    for (int i = 0; i < 2 * kFeedSlots; ++i) mbarrier_init(data + i / 2 * kSlotBytes + i % 2 * 8, 1);
  }
};

// Shared memory: inputs and weights, operand A's ring first, what the copy engine stores, feed slots, other CTAs' sums, the
// barriers of all of these, flags, the additional data of chains.
struct SharedLayout {
  static constexpr int kInputs = kSwapAb ? WeightRing::kDataBytes : 0;
  static constexpr int kWeights = kSwapAb ? 0 : InputRing::kDataBytes;
  static constexpr int kStaging = InputRing::kDataBytes + WeightRing::kDataBytes;
  static constexpr int kFeed = kStaging + kStagingBytes;
  static constexpr int kSums = kFeed + FeedRing::kDataBytes;
  static constexpr int kBarriers = kSums + SumRing::kDataBytes;
  static constexpr int kFlags = kBarriers + InputRing::kBarrierBytes + WeightRing::kBarrierBytes +
                                FeedRing::kBarrierBytes + kSumBarrierBytes;
  static constexpr int kBeside = kFlags + 80;
  enum : int { kOwn = (kBeside + Beside::kBytes + 127) / 128 * 128 };  // kNumTeams times kOwnTaskBytes
};
static_assert(kInputStageBytes % 1024 == 0 && kWeightStageBytes % 1024 == 0,
              "swizzled stages, and the data after them, begin at multiples of 1,024 bytes");

struct Shared {
  InputRing inputs;
  WeightRing weights;
  FeedRing feed;
  u32 staging;
  unsigned char* feed_memory;
  Flags* flags;
  SumRing sums;
  Beside beside;
  unsigned char* own;  // used by tasks that kinds define

  __device__ explicit Shared(unsigned char* memory) {
    const u32 base = shared_address(memory);
    u32 barriers = base + SharedLayout::kBarriers;
    inputs = {base + SharedLayout::kInputs, barriers};
    weights = {base + SharedLayout::kWeights, kAreJoint ? barriers : barriers + InputRing::kBarrierBytes};
    barriers += InputRing::kBarrierBytes;
    feed = {base + SharedLayout::kFeed, barriers += WeightRing::kBarrierBytes};
    staging = base + SharedLayout::kStaging;
    feed_memory = memory + SharedLayout::kFeed;
    flags = reinterpret_cast<Flags*>(memory + SharedLayout::kFlags);
    sums = {base + SharedLayout::kSums, barriers += FeedRing::kBarrierBytes};
    beside = {base + SharedLayout::kBeside, memory + SharedLayout::kBeside};
    own = memory + SharedLayout::kOwn;
  }

  // The mbarrier that signals that a slot's task is stored.
  __device__ __forceinline__ u32 stored(const FeedRing::Place& place) const {
    return shared_address(&flags->stored[place.slot()]);
  }
};

__device__ __forceinline__ Task as_task(const FirstTask& first) {
  Task task{};
  task.op = first.op;
  task.part = first.part, task.num_parts = first.num_parts;
  task.tile_m = first.tile_m, task.tile_n = first.tile_n, task.post = -1;
  task.first_step = first.first_step, task.num_steps = first.num_steps;
  if constexpr (kAheadWindow > 0) task.wait_end = first.waits;
  return task_of_rank(task, rank_in_cluster());
}
