// The main loop of the CUDA cores, for one to four rows. C tile = A tile W tile^T over all of k, or over the k-steps of
// one part, as dot products of rows of A and rows of W.
//
// Work. A warp computes tile_n / kNumWarps columns of the tile: it reads as many rows of W and, if the op is gated,
// also the up projection's rows for the same columns. Its lanes alternate along k in chunks of 16 bytes, keep a sum for
// each pair of a row of A and a row of W, and reduce these sums over the warp at the end of k.
//
// Layout. A stage holds adjacent chunks of all threads, for each of their rows of W and then for each row of A. Chunk c
// of row i of thread t is number (i * kChunks + c) * kNumThreads + t. Every thread copies the data that it reads, so
// each thread has its own ring. No barrier is needed between copy and product, only the wait for the thread's own
// groups. So warps may progress at different speeds. The ring is followed by the tile's sums [tile_m][rows of W],
// written after the last product and read after a CTA barrier.
//
// Waits. Each warp waits for the producers by itself, with all lanes, before it copies what they wrote. A warp whose
// wait expires continues, since the others wait for it at that barrier. After that, the whole CTA exits.
//
// Order. Step t waits for stage t and requests stage t + kNumStages - 1 into the slot of stage t - 1, which only this
// thread has read, and whose values its products have used. The weights of the first stages depend on no producer, so
// they are requested before the wait for the producers. During the last steps of a task of a static queue, the first
// weights of the next one are prefetched into the L2.
//
// Inputs. All warps read the same rows of A, so they are copied through L1. This is correct: the last load of a warp's
// wait acquires the producers' release, and precedes the warp's copies.
#pragma once
#include "dependent_launch.cuh"
#include "fixup.cuh"
#include "launch_args.cuh"
#include "scheduler.cuh"
#include "sync.cuh"
#include "trace.cuh"

constexpr int kChunkBytes = 16, kChunkElements = kChunkBytes / sizeof(Element::Bits);
constexpr int kWarpColumns = 32 * kChunkElements;  // elements of k that the lanes of a warp process at a time

// Bytes of one stage: each thread's chunks of weights and of inputs.
__device__ constexpr int stage_bytes(const OpConfig& op) {
  return (op.weight_rows() + kNumWarps * op.tile_m) * op.tile_k / kChunkElements * kChunkBytes;
}
constexpr int kStageBytes = most_of_ops(stage_bytes);

// fp32 sums of one thread.
__device__ constexpr int num_accumulators(const OpConfig& op) { return op.tile_m * op.weight_rows() / kNumWarps; }
constexpr int kMaxAccumulators = most_of_ops(num_accumulators);

// The elements of a chunk in fp32.
__device__ __forceinline__ void unpack_chunk(float (&values)[kChunkElements], const uint4& chunk) {
  const u32 words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // one, two or four elements per word
    values[kChunkElements / 4 * i] = Element::widen(static_cast<Element::Bits>(words[i]));
    if constexpr (kChunkElements > 4)
      values[kChunkElements / 4 * i + kChunkElements / 8] = Element::widen(static_cast<Element::Bits>(words[i] >> 16));
    if constexpr (kChunkElements > 8) {
      values[4 * i + 1] = Element::widen(static_cast<Element::Bits>(words[i] >> 8));
      values[4 * i + 3] = Element::widen(static_cast<Element::Bits>(words[i] >> 24));
    }
  }
}

template <int kOp>
struct SimtTile {
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kTileM = kConfig.tile_m, kTileN = kConfig.tile_n, kTileK = kConfig.tile_k;
  static constexpr int kColumns = kTileN / kNumWarps;              // columns of C per warp
  static constexpr int kRows = kConfig.weight_rows() / kNumWarps;  // rows of W per warp
  static constexpr int kChunks = kTileK / kWarpColumns;            // chunks per thread in one row
  static constexpr int kNumSums = kTileM * kRows;                  // sums per thread
  static constexpr int kTileSums = kTileM * kConfig.weight_rows();
  static constexpr u32 kRowBytes = kChunks * kNumThreads * kChunkBytes;  // distance to the chunks of the next row
  static_assert(kTileN % kNumWarps == 0 && kTileK % kWarpColumns == 0, "warps share columns, lanes share k");
  static_assert(kNumSums <= 32, "a lane stores at most one of the warp's sums");
  static_assert(kTileSums % 4 == 0 && kTileSums / 4 <= kNumThreads,
                "parts are stored in vectors of four, at most one per thread");
  static_assert(kConfig.copy_bytes == 16, "rows consist of whole chunks of 16 bytes");
  static_assert(kNumStages >= 2, "one stage is read while another arrives");

  float* const acc;
  u32 sums = 0;  // in shared memory, once `compute` has run

  __device__ explicit SimtTile(float (&accumulators)[kMaxAccumulators]) : acc(accumulators) {}

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  // The i-th row of a warp in the task's slice of W: first the rows of its columns, then those of the up projection.
  __device__ static int weight_row(int i) {
    const int up = i / kColumns;
    return up * kTileN + warp() * kColumns + i - up * kColumns;
  }

  // Requests this thread's chunks of the weights, starting at column `k0`.
  __device__ __forceinline__ static void copy_weights(u32 stage, const OpArgs& op, const Task& task, int k0) {
    const int column0 = task.tile_n * kTileN + warp() * kColumns;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int n = column0 + i % kColumns;
      const Element::Bits* row = op.w + static_cast<long long>(n + i / kColumns * op.n) * op.k;
      copy_row<false, kWeightHint>(stage + i * kRowBytes, row, n < op.n, k0, op.k);
    }
  }

  // Requests this thread's chunks of the inputs.
  __device__ __forceinline__ static void copy_inputs(u32 stage, const OpArgs& op, const Task& task, int k0) {
#pragma unroll
    for (int i = 0; i < kTileM; ++i) {
      const int m = task.tile_m * kTileM + i;
      const Element::Bits* row = op.a + static_cast<long long>(m) * op.k;
      copy_row<true, kConfig.input_hint>(stage + (kRows + i) * kRowBytes, row, m < op.m, k0, op.k);
    }
  }

  // Chunks outside the matrix are zero; nothing is read through their pointers.
  template <bool kThroughL1, CacheHint kHint>
  __device__ __forceinline__ static void copy_row(u32 slot, const Element::Bits* row, bool is_inside, int k0, int k) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = k0 + c * kWarpColumns + lane() * kChunkElements;
      const int valid_bytes = is_inside && column < k ? kChunkBytes : 0;
      const u32 target = slot + c * (kNumThreads * kChunkBytes);
      if constexpr (kThroughL1) {
        cp_async_through_l1<kHint>(target, row + column, valid_bytes);
      } else {
        cp_async<kChunkBytes, kHint>(target, row + column, valid_bytes);
      }
    }
  }

  __device__ __forceinline__ void multiply(u32 stage) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const u32 chunk = stage + c * (kNumThreads * kChunkBytes);
      float a[kTileM][kChunkElements];
#pragma unroll
      for (int r = 0; r < kTileM; ++r) unpack_chunk(a[r], load_shared_vector(chunk + (kRows + r) * kRowBytes));
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float w[kChunkElements];
        unpack_chunk(w, load_shared_vector(chunk + i * kRowBytes));
#pragma unroll
        for (int r = 0; r < kTileM; ++r) {
#pragma unroll
          for (int e = 0; e < kChunkElements; ++e) acc[r * kRows + i] = fmaf(a[r][e], w[e], acc[r * kRows + i]);
        }
      }
    }
  }

  // Adds up the lanes' sums, and writes the tile's sums to shared memory, visible to every thread; returns whether all
  // warps are `ok`.
  __device__ __forceinline__ bool gather(bool ok) {
#pragma unroll
    for (int v = 0; v < kNumSums; ++v) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) acc[v] += __shfl_xor_sync(0xFFFFFFFFu, acc[v], distance);
      if (lane() == v) store_shared(sums + 4 * (v / kRows * kConfig.weight_rows() + weight_row(v % kRows)), acc[v]);
    }
    return __syncthreads_and(ok);
  }

  // Writes the tile's sums to shared memory; false for all threads if the launch was aborted while it waited.
  __device__ bool compute(const LaunchArgs& args, const Task& task, Scheduler& scheduler, u32 ring) {
    const OpArgs& op = args.ops[task.op];
    const bool waits = task.wait_begin != task.wait_end;
    if (threadIdx.x == 0 && !waits) trace_stamp(args, scheduler.next, kReady);
    const Steps steps = steps_of<kOp>(args.plan, op, task);
    const int num_steps = steps.count, first_k = steps.first * kTileK, stride_k = steps.stride * kTileK;
    const u32 mine = ring + threadIdx.x * kChunkBytes;
    sums = ring + kNumStages * kStageBytes;

    const int num_ahead = min(num_steps, waits ? kNumStages - 1 - args.plan.held_stages : kNumStages - 1);
#pragma unroll 1
    for (int step = 0; step < num_ahead; ++step) copy_weights(mine + step * kStageBytes, op, task, first_k + step * stride_k);
    PendingWaits pending = all_waits(task);
    bool ok = !waits || wait_before(args, task, scheduler.next, scheduler.epoch, kNumStages - 2, pending);
    if (threadIdx.x == 0 && waits) trace_stamp(args, scheduler.next, kReady);
#pragma unroll 1
    for (int step = 0; step < kNumStages - 1; ++step) {
      if (step < num_steps) {
        if (step >= num_ahead) copy_weights(mine + step * kStageBytes, op, task, first_k + step * stride_k);
        copy_inputs(mine + step * kStageBytes, op, task, first_k + step * stride_k);
      }
      cp_async_commit();
    }
#pragma unroll
    for (int v = 0; v < kNumSums; ++v) acc[v] = 0.0f;

    u32 read_stage = mine, write_stage = mine + (kNumStages - 1) * kStageBytes;
    const u32 ring_end = mine + kNumStages * kStageBytes;
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      cp_async_wait<kNumStages - 2>();
      if (threadIdx.x == 0 && step == 0) trace_stamp(args, scheduler.next, kLoaded);
      if (step + kNumStages == num_steps || (step == 0 && num_steps < kNumStages)) {
        scheduler.draw_ahead();
        prefetch_next(args, scheduler);
      }
      const int ahead = step + kNumStages - 1;
      if (ahead < num_steps) {
        copy_weights(write_stage, op, task, first_k + ahead * stride_k);
        if (pending.step <= ahead) ok &= wait_before(args, task, scheduler.next, scheduler.epoch, ahead, pending);
        copy_inputs(write_stage, op, task, first_k + ahead * stride_k);
      }
      cp_async_commit();
      write_stage += kStageBytes;
      if (write_stage == ring_end) write_stage = mine;
      multiply(read_stage);
      read_stage += kStageBytes;
      if (read_stage == ring_end) read_stage = mine;
    }
    cp_async_wait<0>();
    if (threadIdx.x == 0) trace_stamp(args, scheduler.next, kComputed);
    if constexpr (waits_for_epilogue(kChainOps[kOp]))
      ok &= wait_before(args, task, scheduler.next, scheduler.epoch, kEpilogueStep, pending);
    return gather(ok);
  }

  // Prefetches the first weights of the queue's next task into the L2; with tickets, only one thread knows the next
  // task.
  __device__ static void prefetch_next(const LaunchArgs& args, const Scheduler& scheduler) {
    if (args.plan.assignment != kStaticQueues || scheduler.next + 1 >= scheduler.end) return;
    prefetch_weights_of(args, load_task(args.words + args.plan.task_offset + kTaskWords * (scheduler.next + 1)));
  }

  // Like `add_parts`, for the sums in shared memory.
  __device__ bool add_up(const LaunchArgs& args, const Task& task, u32 epoch) {
    const int thread = static_cast<int>(threadIdx.x);
    const bool holds = thread < kTileSums / 4;
    const u32 place = sums + (holds ? thread : 0) * kChunkBytes;
    const uint4 bits = load_shared_vector(place);
    float four[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
    if (!add_parts<kOp, kNumThreads, 4>(args, task, epoch, thread, four)) return false;
    if (holds) {
#pragma unroll
      for (int i = 0; i < 4; ++i) store_shared(place + 4 * i, four[i]);
    }
    __syncthreads();
    return true;
  }
};

template <int kOp>
using EngineTile = SimtTile<kOp>;
