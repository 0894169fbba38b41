// RMSNorm between ops without a separate kernel. It commutes with the next product except for one factor per row, which
// depends only on the sum of the row's squares. The store of a tile writes these sums; readers of the rows add them up.
//
// Layout. An op whose output is normed has a table [slots, stride] of fp32, stride being m rounded up to a multiple of
// 4. A slot holds the sum of the part of a row that one CTA stores: one per column tile, or one per share of its
// columns if CTAs split a tile's K. With swapped operands, such a share consists of rows, so a column tile has one
// slot. The host computes the number of slots.
//
// The rounded values, as stored, are summed. Rows outside the matrix write nothing; columns outside are zeros. A tile
// beyond the last column, which may occur in the last cluster, has a slot of zeros.
//
// Order of the sums. A thread adds in the order of its columns, lanes are added by a butterfly, and warps in order; the
// reader adds slots at a fixed distance, then lanes by a butterfly. Nothing depends on the order of arrival, so every
// launch gives the same bits.
//
// Memory order. Slots are stored like the tile and before its post, by threads that pass the same barrier. They are
// read with L1 bypassed, after waits for all tasks that stored them.
#pragma once
#include "launch_args.cuh"

constexpr int kRowsOfLoad = 4;  // the stride is a multiple of it

// The epilogue's inputs other than the operands of its op.
struct RowNorm {
  u32 factors;     // the factors of the tile's rows, in shared memory
  float* squares;  // the slot of the tile, from own_slot
  u32 scratch;     // shared memory in which warps with the same rows combine their sums
  u16* mailbox;    // this launch's half for values passed in band (mailbox.cuh), or null
  u16* next_mailbox;  // the half for the next launch
  const LaunchArgs* launch;  // for rotated heads and the cache (rotary.cuh); null if there are none
};

// Whether rows are scaled, by a vector or by a norm.
__device__ constexpr bool scales_rows(int op) { return kOps[op].row_scale || kChainOps[op].norm; }

__device__ __forceinline__ int squares_stride(const OpArgs& op) {
  return (op.m + kRowsOfLoad - 1) / kRowsOfLoad * kRowsOfLoad;
}

// The address at which a CTA writes the sums of squares of a tile's rows: that for row 0 of the matrix. A column tile
// has kShares slots, of which the CTA uses the one with that number.
template <int kOp, int kShares = 1>
__device__ __forceinline__ float* own_slot(const LaunchArgs& args, const Task& task, int share = 0) {
  if constexpr (!kChainOps[kOp].squares) return nullptr;
  const long long slot = task.tile_n * kShares + share;
  return args.chain_of(task.op).squares + slot * squares_stride(args.ops[task.op]);
}

// The sum of squares of the elements in a stored word: two, or only the first one if elements do not have 16 bits.
template <class Type>
__device__ __forceinline__ float squares_of(u32 word) {
  const float low = Type::widen(static_cast<typename Type::Bits>(word));
  if constexpr (!Type::kHasPairs) return low * low;
  const float high = Type::widen(static_cast<typename Type::Bits>(word >> 16));
  return low * low + high * high;
}

// The sum over the four lanes that share a row.
__device__ __forceinline__ float add_four_lanes(float sum) {
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
}

// The sum over all lanes.
__device__ __forceinline__ float add_lanes(float sum) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  return sum;
}

// Stores a row's sum, from the four lanes that share the row, to its slot; called by all lanes of a warp.
__device__ __forceinline__ void leave_squares(const RowNorm& norm, int row, bool is_inside, float sum) {
  sum = add_four_lanes(sum);
  if (is_inside && threadIdx.x % 4 == 0) norm.squares[row] = sum;
}

// The factor of a row, from the sum of its k squares.
__device__ __forceinline__ float factor_of(float squares, int k, float eps) {
  return rsqrtf(__fdividef(squares, static_cast<float>(k)) + eps);
}

// Called by all lanes of one warp: writes the factors of kRows rows, starting at `row0`, a multiple of 4, to shared
// memory. In a slot, groups of four rows are adjacent: each lane reads one group, and the lanes beyond the groups of
// one slot read the next slots. kLoadsInFlight loads are in flight at a time: more loads need fewer round trips, but
// more registers. A load that a branch could skip would wait for the one before it. So a lane whose slot is beyond the
// last one reads the last slot again, and adds zero.
template <int kRows, int kLoadsInFlight = 2>
__device__ __forceinline__ void load_factors(const LaunchArgs& args, int op_index, int row0, u32 factors) {
  const OpArgs& op = args.ops[op_index];
  const float eps = args.chain_of(op_index).eps;
  const int lane = static_cast<int>(threadIdx.x) % 32, stride = squares_stride(op);
  constexpr int kGroups = kRows / kRowsOfLoad;
  static_assert(kGroups * kRowsOfLoad == kRows, "rows are loaded in groups of four");
  constexpr int kAcross = kGroups >= 32 ? 32 : kGroups > 8 ? 16 : kGroups > 4 ? 8 : kGroups > 2 ? 4 : kGroups > 1 ? 2 : 1;
  constexpr int kDown = 32 / kAcross;
#pragma unroll 1
  for (int first = 0; first < kGroups; first += kAcross) {
    const int group = first + lane % kAcross, row = row0 + kRowsOfLoad * group;
    const bool is_inside = group < kGroups && row < op.m;
    const float4* rows = reinterpret_cast<const float4*>(op.row_scale + (is_inside ? row : 0));
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int slot = lane / kAcross; slot - lane / kAcross < op.num_slots; slot += kLoadsInFlight * kDown) {
      float4 found[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i)
        found[i] = load_past_l1(rows + min(slot + i * kDown, op.num_slots - 1) * (stride / kRowsOfLoad));
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        const bool counts = slot + i * kDown < op.num_slots;
        sum.x += counts ? found[i].x : 0.0f, sum.y += counts ? found[i].y : 0.0f;
        sum.z += counts ? found[i].z : 0.0f, sum.w += counts ? found[i].w : 0.0f;
      }
    }
#pragma unroll
    for (int distance = kAcross; distance < 32; distance *= 2) {
      sum.x += __shfl_xor_sync(0xFFFFFFFFu, sum.x, distance), sum.y += __shfl_xor_sync(0xFFFFFFFFu, sum.y, distance);
      sum.z += __shfl_xor_sync(0xFFFFFFFFu, sum.z, distance), sum.w += __shfl_xor_sync(0xFFFFFFFFu, sum.w, distance);
    }
    if (lane < kAcross && group < kGroups) {
      const float of_rows[kRowsOfLoad] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int i = 0; i < kRowsOfLoad; ++i)
        store_shared(factors + 4 * (kRowsOfLoad * group + i), factor_of(of_rows[i], op.k, eps));
    }
  }
}
