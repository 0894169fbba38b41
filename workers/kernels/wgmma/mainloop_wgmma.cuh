// The warp-specialised main loop of sm_90a: C tile = A tile W tile^T, fed by the tensor copy engine, computed by wgmma.
//
// Roles. One warp streams the weights of all tasks through a separate ring. It waits for no signal unless the plan
// holds stages back, so a task's weights are already in flight while its producers are still running. Another warp
// waits for the task's signals and streams its inputs. The math warpgroups multiply; each owns blocks of 64 rows of the
// tile. A third warp posts the stored tiles (post_wgmma.cuh).
//
// Swapped operands (kSwapAb). An instruction multiplies 64 rows of its operand A with up to 256 of its operand B, and
// reads both from shared memory: (64 + columns) * 32 bytes for 64 * columns products. So the wider operand should be B:
// the weights, unless a tile has more rows than columns. In that case, the weights are A, and each warpgroup owns
// blocks of 64 of the tile's columns. Accumulators hold the tile transposed: C^T = W A^T. If the op is gated, 8 rows of
// the gate and the same 8 of the up projection alternate in a stage, so that a thread gets both sums of an output.
//
// Operands. Both are K-major under the 128-byte swizzle, in lines of 128 bytes of k; a stage holds its lines in
// sequence, each with all rows of the tile. As B, a gated op's stage has the gate's lines, then the up projection's. A
// thread gets both sums of an output: from one wgmma if a stage is one line, so that the rows of both are adjacent,
// otherwise from two. Rows and columns outside a matrix arrive as zero. The last block of A may have fewer than 64
// rows: the tensor cores then read beyond them, which affects only sums that are not stored. (The ring of operand A
// precedes the other one, so these reads stay inside shared memory.) So a tile hardly needs to be higher than the
// matrix. (The copy engine takes longer for rows outside the matrix than for existing rows.)
//
// Few instructions per step. A math warp uses one pair of barriers per slot if both rings are equally deep and no other
// CTA shares them. Descriptors are sums of values known before the loop and of the slot's number, which is marked as
// equal in all lanes for the compiler. A step of 128 x 256 products takes 60 instructions per warp, compared with 95
// without these measures.
//
// Promoted sums. For elements of 8 bits, the tensor cores keep about 14 bits of a sum. So each line of a stage, 128
// elements of k, has a separate sum, which the threads add to theirs in fp32. If there are few accumulators, the next
// line is multiplied meanwhile.
//
// Ping-pong. Each of two teams of one math warpgroup multiplies every second task, as a whole tile. A team's turn
// begins when all products of the previous task are issued: the tensor cores continue with its products, while the
// other team stores, or adds up parts. Each warp arrives for its own products, so when a team's turn ends, none of its
// warps can still be waiting for the turn to begin, a phase behind.
//
// Proxies. The copy engine reads inputs that other CTAs wrote by plain stores. The reader's fence.proxy.async, after
// its acquire and before it requests the copies, orders the two proxies. The memory model requires one proxy fence on
// the path from write to read, so the writer needs none. The fence is limited to global memory, which contains all of
// these tensors: for a fence without a state space, the compiler adds a GPU-scope fence, which would wait for
// everything that the CTA has requested. A slot is written again by the copy engine after wgmma has read it, both
// through the async proxy, ordered by the slot's `empty` barrier.
//
// Clusters. Each CTA waits for a task's signals by itself before it requests its slices of the inputs. So data that
// another CTA's copies bring was requested after that CTA's own acquire and proxy fence. A CTA reads inputs only from
// its own shared memory, and needs no ordering with writers that another CTA has waited for.
#pragma once
#include "config_wgmma.cuh"
#include "feed.cuh"
#include "sync.cuh"
#include "trace.cuh"
#include "wgmma.cuh"

using WeightRing = Ring<kNumStages, kWeightStageBytes, WeightSharers>;
using InputRing = Ring<kNumInputStages, kInputStageBytes, InputSharers>;

// Rings with equal numbers of stages that no other CTA shares are joint: a slot has one pair of barriers for its inputs
// and its weights together. So a math warp waits and releases once per step instead of twice. Each producer waits for
// the slot and arms `full` separately, so weights still run ahead. A window counts only weights, so with a window the
// rings stay separate.
constexpr bool kHasWindow = kWindow > 0 || kAheadWindow > 0;
constexpr bool kAreJoint = kNumStages == kNumInputStages && !kHasWindow && kClusterM * kClusterN == 1;

// A math warp's position in both rings; for joint rings only that of the weights is used.
struct StagePlaces {
  WeightRing::Place weight;
  InputRing::Place input;

  __device__ __forceinline__ int input_slot() const { return kAreJoint ? weight.slot() : input.slot(); }
  __device__ __forceinline__ void advance() {
    weight.advance();
    if constexpr (!kAreJoint) input.advance();
  }
  __device__ __forceinline__ void advance_by(int count) {
    weight.advance_by(count);
    if constexpr (!kAreJoint) input.advance_by(count);
  }
};

// Both rings for the math warps.
struct Stages {
  InputRing inputs;
  WeightRing weights;

  __device__ __forceinline__ void wait_filled(const StagePlaces& places) const {
    weights.wait_filled(places.weight);
    if constexpr (!kAreJoint) inputs.wait_filled(places.input);
  }
  __device__ __forceinline__ void release_before(const StagePlaces& places, int lane) const {
    weights.release_before(places.weight, lane);
    if constexpr (!kAreJoint) inputs.release_before(places.input, lane);
  }
};

// Called by all threads of one warp, before it requests the inputs of k-step `step`: waits until the task's waits
// before that step and earlier ones are over; returns false to all threads if the launch is aborted. The caller
// continues either way, since otherwise other roles would wait for it; the task's tile becomes NaN, and so does
// everything that depends on it. Every element of an aborted launch is correct or NaN.
__device__ inline bool wait_for_inputs(const LaunchArgs& args, const Task& task, int index, u32 epoch, int step,
                                       PendingWaits& pending) {
  if (pending.step > step) return true;
  const bool ok = wait_before(args, task, index, epoch, step, pending);
  fence_proxy_async_global();
  return ok;
}

// The two possible destinations of boxes. Into a ring: the copy engine writes a box `offset` bytes into the stage, in
// the shared memory of all sharers, and its bytes count at `full`.
template <class StageSharers>
struct ToRing {
  u32 stage, full;
  u64 policy;

  __device__ __forceinline__ void line(u32 offset, const TensorMap* map, int column, int row) const {
    if constexpr (StageSharers::kCount == 1) {
      copy_line(stage + offset, map, column, row, full, policy);
    } else {
      copy_line_to(stage + offset, map, column, row, full, policy, StageSharers::ctas());
    }
  }
  __device__ __forceinline__ void lines(u32 offset, const TensorMap* map, int row, int line) const {
    if constexpr (StageSharers::kCount == 1) {
      copy_lines(stage + offset, map, row, line, full, policy);
    } else {
      copy_lines_to(stage + offset, map, row, line, full, policy, StageSharers::ctas());
    }
  }
  __device__ __forceinline__ void pairs(u32 offset, const TensorMap* map, int pair, int line) const {
    if constexpr (StageSharers::kCount == 1) {
      copy_pairs(stage + offset, map, pair, line, full, policy);
    } else {
      copy_pairs_to(stage + offset, map, pair, line, full, policy, StageSharers::ctas());
    }
  }
  __device__ __forceinline__ void pixels(u32 offset, const TensorMap* map, const PixelStart& start, int channel, int right,
                                         int down) const {
    if constexpr (StageSharers::kCount == 1) {
      copy_pixels(stage + offset, map, start, channel, right, down, full, policy);
    } else {
      copy_pixels_to(stage + offset, map, start, channel, right, down, full, policy, StageSharers::ctas());
    }
  }
};

// Only into the L2.
struct ToL2 {
  u64 policy;

  __device__ __forceinline__ void line(u32, const TensorMap* map, int column, int row) const {
    prefetch_line(map, column, row, policy);
  }
  __device__ __forceinline__ void lines(u32, const TensorMap* map, int row, int line) const {
    prefetch_lines(map, row, line, policy);
  }
  __device__ __forceinline__ void pairs(u32, const TensorMap* map, int pair, int line) const {
    prefetch_pairs(map, pair, line, policy);
  }
};

// Called by one thread: requests the CTA's slice, for all sharers, of step `step` of kRows rows, starting at `row`,
// which are `offset` bytes into the stage. If rows are whole lines, a map has a row's lines as its last dimension, and
// one request loads the slice; otherwise each line is a separate request. kIsPaired: 8 rows of a gate and 8 of an up
// projection alternate, for which the host requires whole lines.
template <int kRows, int kTileK, bool kIsWhole, class StageSharers, bool kIsPaired = false, class Target>
__device__ __forceinline__ void request_rows(const Target& to, u32 offset, const TensorMap* map, int step, int row) {
  using OwnSlice = Slice<kRows, kTileK, StageSharers::kCount>;
  const int place = StageSharers::place();
  const int first_line = place % OwnSlice::kLineSlices * OwnSlice::kNumLines;
  const int first_row = place / OwnSlice::kLineSlices * OwnSlice::kNumRows;
  offset += (first_line * kRows + first_row) * kLineBytes;
  row += first_row;
  const int line = step * OwnSlice::kStageLines + first_line;
  if constexpr (kIsPaired) {
    static_assert(kIsWhole && OwnSlice::kNumRows % kPairRows == 0);
    to.pairs(offset, map, row / kPairRows, line);
  } else if constexpr (kIsWhole) {
    to.lines(offset, map, row, line);
  } else {
#pragma unroll
    for (int i = 0; i < OwnSlice::kNumLines; ++i) {
      to.line(offset + i * kRows * kLineBytes, map, (line + i) * kLineColumns, row);
    }
  }
}

// Loads the inputs of a product that gathers its rows (gathered_wgmma.cuh).
template <int kOp>
struct GatheredStage;

template <int kOp>
__device__ __forceinline__ void request_input_stage(u32 stage, u32 full, const TensorMap* map, int step, int tile_m,
                                                    u64 policy) {
  constexpr OpConfig kConfig = kOps[kOp];
  mbarrier_arrive_expect(full, kConfig.tile_m * kConfig.tile_k * kElementBytes);
  const ToRing<InputSharers> to{stage, full, policy};
  if constexpr (gathers(kOp)) {
    GatheredStage<kOp>::request(to, map, step, tile_m * kConfig.tile_m);
  } else {
    request_rows<kConfig.tile_m, kConfig.tile_k, kWholeLines[kOp], InputSharers>(to, 0, map, step, tile_m * kConfig.tile_m);
  }
}

// The boxes of a step of weights; those of a gate and of an up projection are n rows apart.
template <int kOp, class Target>
__device__ __forceinline__ void request_weight_boxes(const Target& to, const TensorMap* map, int step, int tile_n, int n) {
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr bool kIsPaired = kSwapAb && kConfig.gated, kIsWhole = kWholeLines[kOp];
  constexpr int kRows = kIsPaired ? kConfig.weight_rows() : kConfig.tile_n, kTileK = kStoredK<kOp>;
  request_rows<kRows, kTileK, kIsWhole, WeightSharers, kIsPaired>(to, 0, map, step, tile_n * kRows);
  if constexpr (kConfig.gated && !kIsPaired) {
    request_rows<kRows, kTileK, kIsWhole, WeightSharers>(to, kRows * kTileK * kElementBytes, map, step, n + tile_n * kRows);
  }
}

template <int kOp>
__device__ __forceinline__ void request_weight_stage(u32 stage, u32 full, const TensorMap* map, int step, int tile_n,
                                                     const OpArgs& op, u64 policy) {
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr u32 kCodeBytes = kConfig.weight_rows() * kStoredK<kOp> * kElementBytes;
  // Each CTA loads its own groups' factors, which are few. It skips those of rows that the last tile does not have.
  constexpr int kLists = lists_of(kConfig), kHalves = kConfig.gated ? 2 : 1;
  const u32 list_bytes = kLists > 0 ? min(kConfig.tile_n, op.n - tile_n * kConfig.tile_n) * kListBytes : 0;
  mbarrier_arrive_expect(full, kCodeBytes + kLists * kHalves * list_bytes);
  request_weight_boxes<kOp>(ToRing<WeightSharers>{stage, full, policy}, map, step, tile_n, op.n);
  if constexpr (kLists > 0) {
    const int rows = kHalves * op.n;
    const u8* const lists = reinterpret_cast<const u8*>(op.w) + static_cast<long long>(rows) * op.k / 8 * Weights::kBits;
#pragma unroll
    for (int i = 0; i < kLists * kHalves; ++i) {
      const u32 first = (step * kLists + i / kHalves) * rows + i % kHalves * op.n + tile_n * kConfig.tile_n;
      copy_bytes(stage + kCodeBytes + i * kConfig.tile_n * kListBytes, lists + first * kListBytes, list_bytes, full, policy);
    }
  }
}

// A thread's number in its team, and the team's number, for one or two teams.
__device__ __forceinline__ int team_thread() { return kNumTeams == 1 ? thread_number() : thread_number() % kTeamThreads; }
__device__ __forceinline__ int team_number() { return kNumTeams == 1 ? 0 : thread_number() / kTeamThreads; }

// A warpgroup's number in its team.
__device__ __forceinline__ int team_group() { return kTeamGroups == 1 ? 0 : uniform(team_thread() / 128); }

// Multiplies weights that are stored in fewer bits (converted_wgmma.cuh).
template <int kOp>
struct Converted;

// Multiplies an op's tiles in place of `WgmmaTile`: a struct of a part of its epilogue, next to the part.
template <int kOp>
struct PartProduct;

// Multiplies a tile whose promoted sums do not fit the registers twice; next to the part that needs tiles of such a width.
template <int kOp, class Issued>
__device__ void multiply_in_pieces(float (&acc)[kMaxWgmmaAccumulators], int num_steps, const Stages& stages,
                                   StagePlaces& places, const Issued& issued);

// Multiplies one task's tile into the warpgroup's accumulators.
template <int kOp>
struct WgmmaTile {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kTileK = kConfig.tile_k, kStageLines = kTileK / kLineColumns;
  static constexpr int kSharedRows = shared_rows(kConfig), kBlocks = blocks_of(kConfig);
  // As operand B, a gate and an up projection of several lines are separate.
  static constexpr int kHalves = kConfig.gated && !kSwapAb && kStageLines > 1 ? 2 : 1;
  static constexpr int kBlockSums = block_sums(kConfig);
  static constexpr int kColumns = 2 * kBlockSums / kHalves;  // of one wgmma
  static constexpr int kNumSums = kBlocks * kBlockSums;
  // Threads that hold part of the tile: if the last block has fewer than 64 rows, the last warps hold none.
  static constexpr int kHolders = kBlocks == 1 ? 2 * kSharedRows : kTeamThreads;

  // With swapped operands, the position of a row of a stage among the tile's rows of W, where those of a gate come
  // first.
  __device__ static __forceinline__ u32 weight_row(u32 row) {
    if constexpr (!kConfig.gated) return row;
    return row / 8 % 2 * kConfig.tile_n + row / kPairRows * 8 + row % 8;
  }

  __device__ static void fill(float (&acc)[kMaxWgmmaAccumulators], float value) {
#pragma unroll
    for (int i = 0; i < kNumSums; ++i) acc[i] = value;
  }

  // The start of a warpgroup's operands in a stage, in units of 16 bytes.
  struct Operands {
    u32 inputs, weights;

    __device__ __forceinline__ explicit Operands(const Stages& stages) {
      const u32 own_rows = team_group() * kBlocks * kBlockRows * kLineBytes;
      inputs = operand_units(stages.inputs.data + (kSwapAb ? 0 : own_rows));
      weights = operand_units(stages.weights.data + (kSwapAb ? own_rows : 0));
    }
    __device__ __forceinline__ Operands(u32 input, u32 weight) : inputs(input), weights(weight) {}

    __device__ __forceinline__ Operands at(const StagePlaces& places) const {
      const u32 input = inputs + places.input_slot() * (kInputStageBytes / 16);
      const u32 weight = weights + places.weight.slot() * (kWeightStageBytes / 16);
      return {input, weight};
    }
    __device__ __forceinline__ u32 a() const { return kSwapAb ? weights : inputs; }
    __device__ __forceinline__ u32 b() const { return kSwapAb ? inputs : weights; }
  };

  // The products of a line of a stage, with separate sums.
  __device__ static __forceinline__ void multiply_line(float (&sums)[kNumSums], const Operands& operands, int line) {
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < 4; ++slice) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const int a_units = (line * kSharedRows + block * kBlockRows) * (kLineBytes / 16) + slice * 2;
          const int b_units = (half * kStageLines + line) * kColumns * (kLineBytes / 16) + slice * 2;
          Wgmma<kColumns>::multiply(sums + block * kBlockSums + half * kColumns / 2, operand_descriptor(operands.a() + a_units),
                                    operand_descriptor(operands.b() + b_units), slice > 0);
        }
      }
    }
    wgmma_commit();
  }

  // Like `multiply`, for elements of 8 bits.
  template <class Issued>
  __device__ static void multiply_promoted(float (&acc)[kMaxWgmmaAccumulators], int num_steps, const Stages& stages,
                                           StagePlaces& places, const Issued& issued) {
    constexpr int kAhead = kNumSums <= 32 ? 1 : 0;  // lines multiplied while one is added, if registers allow
    const int lane = thread_number() % 32;
    const Operands first(stages);
    float sums[kAhead + 1][kNumSums];
    const auto add = [&](int line) {
#pragma unroll
      for (int i = 0; i < kNumSums; ++i) acc[i] += sums[line % (kAhead + 1)][i];
    };
    fill(acc, 0.0f);
#pragma unroll 1
    for (int left = num_steps; left > 0; --left) {
      stages.wait_filled(places);
      const Operands operands = first.at(places);
#pragma unroll
      for (int line = 0; line < kStageLines; ++line) {
        multiply_line(sums[line % (kAhead + 1)], operands, line);
        wgmma_wait<kAhead>();
        if (line >= kAhead) add(line - kAhead);
      }
      if constexpr (kAhead > 0) {
        wgmma_wait<0>();
        add(kStageLines - 1);
      }
      places.advance();
      stages.release_before(places, lane);
    }
    issued();
  }

  // `issued` is called when all products are issued.
  template <class Issued>
  __device__ static void multiply(float (&acc)[kMaxWgmmaAccumulators], int num_steps, const Stages& stages,
                                  StagePlaces& places, const Issued& issued) {
    fill(acc, 0.0f);
    const int lane = thread_number() % 32;
    const Operands first(stages);
    bool is_first = true;
#pragma unroll 1
    for (int left = num_steps; left > 0; --left) {
      stages.wait_filled(places);
      const Operands operands = first.at(places);
      wgmma_fence();
#pragma unroll
      for (int slice = 0; slice < kTileK / 16; ++slice) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            // In units of 16 bytes: the offset of whole lines, then that of the slice inside its line.
            const int line = slice / 4;
            const int a_units = (line * kSharedRows + block * kBlockRows) * (kLineBytes / 16) + slice % 4 * 2;
            const int b_units = (half * kStageLines + line) * kColumns * (kLineBytes / 16) + slice % 4 * 2;
            Wgmma<kColumns>::multiply(acc + block * kBlockSums + half * kColumns / 2, operand_descriptor(operands.a() + a_units),
                                      operand_descriptor(operands.b() + b_units));
          }
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (!is_first) stages.release_before(places, lane);
      is_first = false;
      places.advance();
    }
    issued();
    wgmma_wait<0>();
    if (!is_first) stages.release_before(places, lane);
  }
};
