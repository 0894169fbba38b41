// The additional constants of the warp-specialised kernel: its two rings, and the warps that multiply.
#pragma once
#include "config.cuh"
#include "element.cuh"
#include "stored.cuh"

#ifdef TUNER_CONFIG_DEFAULT
constexpr int kNumInputStages = 3;  // depth of the inputs' ring; kNumStages is that of the weights' ring
constexpr int kWindow = 0;          // maximum stages of weights in flight; 0: as many as the ring has
constexpr bool kPingPong = false;   // whether the math warpgroups alternate between tasks, or share each of them
constexpr bool kSwapAb = false;     // whether an instruction reads 64 rows of the weights instead of the inputs
constexpr bool kWholeLines[kNumOps] = {true, false};  // whether rows of k are whole lines
constexpr bool kTmaEpilogue = true;  // whether the copy engine stores the tiles; otherwise the threads do
constexpr int kAheadWindow = 1;      // kWindow while the ring fills for a task that waits; 0: no other limit
constexpr int kStartupPrefetch = 2;  // stages of weights beyond the ring that are prefetched into the L2 at the start
#endif

// The producers' warpgroup comes after the math warpgroups, and one that reads in band after that. A task is multiplied
// by a team of math warpgroups: all of them or, with ping-pong, one.
constexpr int kNumMathGroups = (kNumWarps - kReaderWarps) / 4 - 1;
constexpr int kNumTeams = kPingPong ? kNumMathGroups : 1;
constexpr int kTeamGroups = kNumMathGroups / kNumTeams, kTeamWarps = 4 * kTeamGroups, kTeamThreads = 32 * kTeamWarps;
static_assert(kNumTeams <= 2, "one bit states which team has its turn");
constexpr int kWeightWarp = 4 * kNumMathGroups, kInputWarp = kWeightWarp + 1, kPostWarp = kInputWarp + 1;
constexpr int kPrefetchWarp = kPostWarp + 1;

// Bytes of shared memory of a team for tasks that kinds define.
#if TUNER_OWN_TASKS == 0
enum : int { kOwnTaskBytes = 0 };
#endif

// Tensor maps of each operand, only for products, in order.
__device__ constexpr int map_of(int op) {
  int before = 0;
  for (int other = 0; other < op; ++other) before += !is_own_task(other);
  return before;
}
enum : int { kNumMaps = map_of(kNumOps) };

// The first of the warpgroups' barriers, and the first of the teams' barriers, which follow them.
constexpr int kWarpgroupBarriers = 1;
enum : int { kTeamBarriers = kWarpgroupBarriers + kNumMathGroups };

// Columns of one line of the copy engine; rows of a block, the 64 rows of wgmma's operand A. Enumerators add no symbols
// to a kernel.
enum : int { kElementBytes = sizeof(Element::Bits) };
constexpr int kLineBytes = 128, kLineColumns = kLineBytes / kElementBytes, kBlockRows = 64;
constexpr int kPairRows = 16;  // 8 of a gate and 8 of an up projection, if they alternate

// Rows of a tile that are divided among the warpgroups: those of the inputs or, with swapped operands, of the weights.
__device__ constexpr int shared_rows(const OpConfig& op) { return kSwapAb ? op.weight_rows() : op.tile_m; }

// The piece that a warp stores in one request to the copy engine: its 16 rows of a block, as wide as a line. It fills
// one of two buffers while the other is being stored.
constexpr int kChunkRows = 16, kChunkBytes = kChunkRows * kLineBytes, kChunkBuffers = 2;
constexpr int kStagingBytes = kTmaEpilogue ? 4 * kNumMathGroups * kChunkBuffers * kChunkBytes : 0;

// Blocks of 64 of the shared rows that one warpgroup multiplies; some rows of the last blocks may be unused.
__device__ constexpr int blocks_of(const OpConfig& op) {
  return (shared_rows(op) + kBlockRows * kTeamGroups - 1) / (kBlockRows * kTeamGroups);
}

// fp32 accumulators of a thread for a block: half a register per column of the other operand.
__device__ constexpr int block_sums(const OpConfig& op) {
  return (kSwapAb ? op.tile_m : op.weight_rows()) / 2;
}

__device__ constexpr int max_input_stage_bytes() {
  int widest = 0;
  for (const OpConfig& op : kOps) {
    const int bytes = op.tile_m * op.tile_k * kElementBytes;
    widest = bytes > widest ? bytes : widest;
  }
  return widest;
}
constexpr int kInputStageBytes = max_input_stage_bytes();

__device__ constexpr int max_weight_stage_bytes() {
  int widest = 0;
  for (const OpConfig& op : kOps) {
    const int bytes = stored_bytes(op);
    widest = bytes > widest ? bytes : widest;
  }
  return (widest + 1023) / 1024 * 1024;
}
constexpr int kWeightStageBytes = max_weight_stage_bytes();

// fp32 accumulators of one thread, for the op that needs most.
__device__ constexpr int max_wgmma_accumulators() {
  int widest = 0;
  for (const OpConfig& op : kOps) {
    const int accumulators = blocks_of(op) * block_sums(op);
    widest = accumulators > widest ? accumulators : widest;
  }
  return widest;
}
constexpr int kMaxWgmmaAccumulators = max_wgmma_accumulators();
