// The mma.sync main loop: C tile = A tile W tile^T over all of k, or over the k-steps of one part, through a ring of
// kNumStages stages in shared memory. A stage holds the A tile [tile_m][tile_k] and then the W tile [tile_n][tile_k],
// laid out as in copy.cuh. If the op is gated, a stage holds two W tiles, those of the gate and of the up projection
// for the same columns of C.
//
// Fragments. If an op is gated, fragment 2 j holds the gate of a warp's columns starting at 8 j, and fragment 2 j + 1
// their up projection. So the same thread has both sums of an output, and stores only their product.
//
// Order. All threads copy, all threads compute. Step t requests stage t + kNumStages - 1 into the slot of stage t - 1,
// which is free: all warps passed the barrier in step t - 1 after their last read of it. Before its last slice, step t
// waits for stage t + 1, passes the CTA barrier, and reads that stage's first fragments, so that the tensor cores are
// busy across the boundary. The weights of the first stages depend on no producer, so they are requested before the
// wait for the producers, except for the stages that the plan holds back.
//
// Waits within a task. The waits of the first kNumStages steps are made before the first load. The waits of the step
// whose stage step t will request are made at the end of step t - 1, after its barrier. Before that barrier, each
// thread reads whether there are any, since thread 0 overwrites that word after it has waited. So a ticket is still
// drawn only after all waits.
#pragma once
#include "gather.cuh"
#include "fixup.cuh"
#include "launch_args.cuh"
#include "scheduler.cuh"
#include "stored.cuh"
#include "sync.cuh"
#include "trace.cuh"

// Bytes of one pipeline stage: the A tile, then the W slice.
__device__ constexpr int stage_bytes(const OpConfig& op) { return op.tile_m * op.tile_k * 2 + stored_bytes(op); }
constexpr int kStageBytes = most_of_ops(stage_bytes);

// fp32 accumulators of one thread.
__device__ constexpr int num_accumulators(const OpConfig& op) { return op.tile_m * op.weight_rows() / kNumThreads; }
constexpr int kMaxAccumulators = most_of_ops(num_accumulators);

// The products of weights that are codes: converted_mma.cuh. Those of elements are the tile's own; their code has no
// object in addition, for which the compiler would allocate registers differently.
template <int kOp>
struct MmaTile;
template <int kOp>
struct ConvertedProducts;
template <int kOp, bool kConverts = converts_weights()>
struct OperandsOf {
  using Fragments = typename MmaTile<kOp>::Fragments;
  using Lane = const typename MmaTile<kOp>::Lane;
};
template <int kOp>
struct OperandsOf<kOp, true> {
  using Fragments = typename ConvertedProducts<kOp>::Fragments;
  using Lane = typename ConvertedProducts<kOp>::Lane;
};

template <int kOp>
struct MmaTile {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kTileM = kConfig.tile_m, kTileN = kConfig.tile_n, kTileK = kConfig.tile_k;
  static constexpr bool kGated = kConfig.gated;
  static constexpr int kWarpM = kTileM / kConfig.warps_m, kWarpN = kTileN / kConfig.warps_n;  // of C
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 8 * (kGated ? 2 : 1);
  using Products = ConvertedProducts<kOp>;
  static constexpr int kSlices = kTileK / (converts_weights() ? 128 / Weights::kBits : 16);
  static constexpr int kNumSums = kFragsM * kFragsN * 4;  // accumulators per thread
  using Layout = RowLayout<kTileK>;
  static constexpr int kWOffset = kTileM * Layout::kRowBytes;
  static constexpr int kUpOffset = kWOffset + kTileN * kStoredK<kOp> * 2;
  // Distance from the rows of one pair of W fragments to the next.
  static constexpr int kPairBytes = (kGated ? 8 : 16) * Layout::kRowBytes;
  static_assert(kConfig.warps_m * kConfig.warps_n == kNumWarps, "the warp grid must hold all warps");
  static_assert(kWarpM % 16 == 0 && kWarpN % 8 == 0, "a warp tile is made of 16 x 8 fragments");
  static_assert(kNumStages >= 2 && kSlices % 2 == 0, "two fragment buffers alternate within a stage");

  // Copies the W slice of a stage: the rows of the task's columns, and those of the up projection, n rows further down.
  struct WeightCopy {
    using Copy = TileCopy<kTileN, kStoredK<kOp>, kConfig.copy_bytes, kWeightHint>;
    Copy w, up;

    __device__ WeightCopy(const OpArgs& op, const Task& task, int first_k)
        : w(op.w, task.tile_n * kTileN, op.n, stored_columns(op.k), stored_columns(first_k)),
          up(kGated ? op.w + static_cast<long long>(op.n) * stored_columns(op.k) : op.w, task.tile_n * kTileN, op.n,
             stored_columns(op.k), stored_columns(first_k)) {}

    __device__ __forceinline__ void copy(u32 stage, int k0, int stride_k, int k) {
      w.copy(stage + kWOffset, stored_columns(k0), stored_columns(stride_k), stored_columns(k));
      if constexpr (kGated) up.copy(stage + kUpOffset, stored_columns(k0), stored_columns(stride_k), stored_columns(k));
    }
  };

  // Operand fragments of one slice, 16 columns of k.
  struct Fragments {
    u32 a[kFragsM][4];
    u32 b[kFragsN][2];
  };

  // Four accumulators of each of the kFragsM x kFragsN fragments; all ops use one array, since the compiler would give
  // two arrays separate registers.
  float* const acc;
  u32 ring = 0;  // in shared memory; free for the epilogue once `compute` has run

  __device__ explicit MmaTile(float (&accumulators)[kMaxAccumulators]) : acc(accumulators) {}

  __device__ static constexpr int index(int i, int j) { return (i * kFragsN + j) * 4; }

  // The start of this lane's ldmatrix rows in a stage. The next slice is 32 bytes further, which is an xor under the
  // swizzle, since all rows that a lane reads are equal modulo 8.
  struct Lane {
    u32 a_row, a_swizzled, w_row, w_swizzled;

    __device__ Lane() {
      const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
      const int a = warp / kConfig.warps_n * kWarpM + (lane & 15);
      // Half of the lanes point to the pair's second fragment: the next eight rows, or the up projection's.
      const int w = warp % kConfig.warps_n * kWarpN + (lane & 7) + (lane >> 4) * (kGated ? kTileN : 8);
      a_row = a * Layout::kRowBytes;
      a_swizzled = Layout::offset(a, lane >> 4) - a_row;
      w_row = kWOffset + w * Layout::kRowBytes;
      w_swizzled = Layout::offset(w, (lane >> 3) & 1) - w * Layout::kRowBytes;
    }
  };

  __device__ static void load_fragments(Fragments& frags, const Lane& lane, u32 stage, int slice) {
    const u32 a = stage + lane.a_row + (lane.a_swizzled ^ (slice * 32));
#pragma unroll
    for (int i = 0; i < kFragsM; ++i) ldmatrix_x4(frags.a[i], a + i * 16 * Layout::kRowBytes);
    const u32 w = stage + lane.w_row + (lane.w_swizzled ^ (slice * 32));
#pragma unroll
    for (int j = 0; j + 1 < kFragsN; j += 2) {
      u32 two[4];
      ldmatrix_x4(two, w + j / 2 * kPairBytes);
      frags.b[j][0] = two[0], frags.b[j][1] = two[1], frags.b[j + 1][0] = two[2], frags.b[j + 1][1] = two[3];
    }
    if constexpr (kFragsN % 2 == 1) ldmatrix_x2(frags.b[kFragsN - 1], w + (kFragsN - 1) * 8 * Layout::kRowBytes);
  }

  __device__ void multiply(const Fragments& frags) {
#pragma unroll
    for (int i = 0; i < kFragsM; ++i) {
#pragma unroll
      for (int j = 0; j < kFragsN; ++j) {
        const int column = i % 2 == 0 ? j : kFragsN - 1 - j;  // zigzag: consecutive products share an operand
        Element::multiply(acc + index(i, column), frags.a[i], frags.b[column]);
      }
    }
  }

  // The same for fragments of codes.
  template <class CodeFragments, class CodeLane>
  __device__ static __forceinline__ void load_fragments(CodeFragments& frags, const CodeLane& lane, u32 stage, int unit) {
    Products::load_fragments(frags, lane, stage, unit);
  }

  __device__ static __forceinline__ void copy_weights(WeightCopy& copy_w, const OpArgs& op, const Task& task, u32 stage,
                                                      int k0, int stride_k) {
    copy_w.copy(stage, k0, stride_k, op.k);
    if constexpr (lists_of(kConfig) > 0) Products::copy_lists(op, task, stage, k0);
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kNumSums; ++i) acc[i] = 0.0f;
  }

  // Computes the tile into `acc`; returns false to all threads if the launch was aborted while it waited.
  __device__ bool compute(const LaunchArgs& args, const Task& task, Scheduler& scheduler, u32 ring_memory) {
    __shared__ PendingWaits pending;
    ring = ring_memory;
    const OpArgs& op = args.ops[task.op];
    const bool waits = task.wait_begin != task.wait_end;
    if (threadIdx.x == 0 && !waits) trace_stamp(args, scheduler.next, kReady);
    const Steps steps = steps_of<kOp>(args.plan, op, task);
    const int num_steps = steps.count, first_k = steps.first * kTileK, stride_k = steps.stride * kTileK;
    using InputCopy = typename InputCopyOf<kOp, kTileM, kTileK, kConfig.copy_bytes, kConfig.input_hint>::Type;
    InputCopy copy_a(op.a, task.tile_m * kTileM, op.m, op.k, first_k);
    WeightCopy copy_w(op, task, first_k);

    const int num_ahead = min(num_steps, waits ? kNumStages - 1 - args.plan.held_stages : kNumStages - 1);
#pragma unroll 1
    for (int step = 0; step < num_ahead; ++step)
      copy_weights(copy_w, op, task, ring + step * kStageBytes, first_k + step * stride_k, stride_k);
    if (!wait_for(args, task, scheduler.next, scheduler.epoch, kNumStages - 1, true, pending)) {
      cp_async_wait<0>();
      return false;
    }
    if (threadIdx.x == 0 && waits) trace_stamp(args, scheduler.next, kReady);
    for (int step = 0; step < kNumStages - 1; ++step) {
      if (step < num_steps) {
        if (step >= num_ahead) copy_weights(copy_w, op, task, ring + step * kStageBytes, first_k + step * stride_k, stride_k);
        copy_a.copy(ring + step * kStageBytes, first_k + step * stride_k, stride_k, op.k);
      }
      cp_async_commit();
    }
    clear();


    typename OperandsOf<kOp>::Lane lane{};
    typename OperandsOf<kOp>::Fragments frags[2];
    u32 read_stage = ring, write_stage = ring + (kNumStages - 1) * kStageBytes;
    const u32 ring_end = ring + kNumStages * kStageBytes;
    cp_async_wait<kNumStages - 2>();
    __syncthreads();
    if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kLoaded);
    load_fragments(frags[0], lane, read_stage, 0);
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      const int ahead = step + kNumStages - 1;
      if (step + kNumStages == num_steps || (step == 0 && num_steps < kNumStages)) scheduler.draw_ahead();
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        if (slice + 1 < kSlices) {
          load_fragments(frags[(slice + 1) & 1], lane, read_stage, slice + 1);
        } else {
          cp_async_wait<kNumStages - 2>();
          const bool waits_next = pending.step <= step + kNumStages;
          __syncthreads();
          if (waits_next && !wait_for(args, task, scheduler.next, scheduler.epoch, step + kNumStages, false, pending)) {
            cp_async_wait<0>();
            return false;
          }
          read_stage += kStageBytes;
          if (read_stage == ring_end) read_stage = ring;
          if (step + 1 < num_steps) load_fragments(frags[0], lane, read_stage, 0);
        }
        if (slice == 0) {
          if (ahead < num_steps) {
            copy_a.copy(write_stage, first_k + ahead * stride_k, stride_k, op.k);
            copy_weights(copy_w, op, task, write_stage, first_k + ahead * stride_k, stride_k);
          }
          cp_async_commit();
          write_stage += kStageBytes;
          if (write_stage == ring_end) write_stage = ring;
        }
        if constexpr (converts_weights()) {
          Products::multiply(acc, lane, frags[slice & 1], slice);
        } else {
          multiply(frags[slice & 1]);
        }
      }
    }
    if constexpr (converts_weights()) Products::finish(acc);
    cp_async_wait<0>();
    if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kComputed);
    if constexpr (waits_for_epilogue(kChainOps[kOp])) {
      if (waits) return wait_for(args, task, scheduler.next, scheduler.epoch, kEpilogueStep, false, pending);
    }
    return true;
  }

  // Like `add_parts`, for the accumulators.
  __device__ bool add_up(const LaunchArgs& args, const Task& task, u32 epoch) {
    return add_parts<kOp, kNumThreads, kNumSums>(args, task, epoch, threadIdx.x, acc);
  }
};

template <int kOp>
using EngineTile = MmaTile<kOp>;
