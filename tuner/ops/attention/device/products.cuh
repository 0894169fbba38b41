// A warp's work on its slice of a tile: scores, their online softmax, and the sum of values.
//
// Layout. Both products have the cache as operand A, so that the few queries fill the 8 columns of an instruction:
// S^T[tokens, columns] = K Q^T and O^T[dims, columns] = V^T P^T. Lane l holds columns 2 (l % 4) and 2 (l % 4) + 1 of
// both results. So a column's factor is in the lane that needs it. Probabilities are rounded to the cache's type and
// converted from the accumulators' layout to operand B's in registers.
//
// Numbers. Each warp keeps maximum, normaliser and sums of its own slices. The maximum is in units of log2, subtracted
// before exp2. A column that has seen no token has the maximum -inf, and normaliser and sums of 0.
//
// Masks. The memory of tokens that no query sees, after the end of a context or before a window, may contain anything,
// including NaN: their scores are replaced, and their values are cleared.
#pragma once
#include "wait_attention.cuh"

struct Softmax {
  float sums[kColumnGroups][kDimSteps][4];
  float maxima[kColumnGroups][2], normalisers[kColumnGroups][2];
};

struct Queries {
  u32 words[kColumnGroups][kDimSteps][2];
};

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xFF800000u)); }

__device__ __forceinline__ void load_queries(const Ring& ring, int slot, int num_columns, Queries& queries) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
    const int column = 8 * group + lane / 4;
    const bool is_there = column < num_columns;
    const u32 row = ring.queries(slot) + (is_there ? column : 0) * kQueryRowBytes + lane % 4 * 4;
#pragma unroll
    for (int step = 0; step < kDimSteps; ++step) {
      queries.words[group][step][0] = is_there ? load_shared_word(row + 32 * step) : 0;
      queries.words[group][step][1] = is_there ? load_shared_word(row + 32 * step + 16) : 0;
    }
  }
}

__device__ __forceinline__ void clear(Softmax& softmax) {
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      softmax.maxima[group][half] = minus_infinity();
      softmax.normalisers[group][half] = 0;
    }
#pragma unroll
    for (int step = 0; step < kDimSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) softmax.sums[group][step][i] = 0;
    }
  }
}

// The address of 8 elements of a token, starting at `dim`, a multiple of 8.
__device__ __forceinline__ u32 in_tile(u32 tile, int token, int dim) {
  const u32 box = tile + token / kBoxTokens * kBoxBytes, line = box + dim / kLineDims * (kBoxTokens * 128);
  return line + token % kBoxTokens * 128 + ((dim % kLineDims * 2) ^ ((token & 7) << 4));
}

// Multiplies a slice of keys, in two chains of sums, so that an instruction waits only for the last but one.
__device__ __forceinline__ void multiply_keys(u32 tile, int slice, const Queries& queries, float (&scores)[kColumnGroups][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float chains[2][kColumnGroups][4] = {};
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step) {
    u32 keys[4];
    ldmatrix_x4(keys, in_tile(tile, slice * kSliceTokens + lane % 16, 16 * step + lane / 16 * 8));
#pragma unroll
    for (int group = 0; group < kColumnGroups; ++group)
      Element::multiply(chains[step % 2][group], keys, queries.words[group][step]);
  }
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[group][i] = chains[0][group][i] + chains[1][group][i];
  }
}

// cap * tanh(score / cap) by exp2, in units of scores that are not scaled yet: args.cap is cap / scale,
// args.tanh_scale_log2 is 2 scale / cap log2(e).
__device__ __forceinline__ void cap_scores(const AttentionArgs& args, float (&scores)[kColumnGroups][4]) {
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scores[group][i] = args.cap - 2 * args.cap * reciprocal_approx(1 + exp2_approx(scores[group][i] * args.tanh_scale_log2));
  }
}

// Sets scores to -inf for tokens that a query does not see. `first_token` is the first token of the slice. A new token
// sees itself and all earlier tokens.
__device__ __forceinline__ void mask_scores(const AttentionArgs& args, const TaskInHand& hand, int first_token,
                                            float (&scores)[kColumnGroups][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = hand.task.block() * kColumns + 8 * group + lane % 4 * 2 + i % 2;
      const int seen = hand.length - args.new_tokens + 1 + column / args.query_heads;
      const int token = first_token + lane / 4 + i / 2 * 8;
      if (token >= seen || (kHasWindow && token < seen - args.window)) scores[group][i] = minus_infinity();
    }
  }
}

// Converts scores to probabilities, and scales sums and normalisers to the new maximum.
__device__ __forceinline__ void update(float scale_log2, Softmax& softmax, float (&scores)[kColumnGroups][4]) {
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = fmaxf(scores[group][half], scores[group][half + 2]);
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 4));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 8));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 16));
      const float before = softmax.maxima[group][half], now = fmaxf(before, most * scale_log2);
      const float base = now == minus_infinity() ? 0.0f : now;
      const float kept = exp2_approx(before - base);
      softmax.maxima[group][half] = now;
#pragma unroll
      for (int row = 0; row < 2; ++row)
        scores[group][half + 2 * row] = exp2_approx(scores[group][half + 2 * row] * scale_log2 - base);
      softmax.normalisers[group][half] =
          softmax.normalisers[group][half] * kept + (scores[group][half] + scores[group][half + 2]);
#pragma unroll
      for (int step = 0; step < kDimSteps; ++step) {
        softmax.sums[group][step][half] *= kept;
        softmax.sums[group][step][half + 2] *= kept;
      }
    }
  }
}

// Multiplies a slice, of which queries see tokens `first` to `end`; the values of other tokens are cleared.
template <bool kMasked>
__device__ __forceinline__ void multiply_values(u32 tile, int slice, int first, int end, const u32 (&probabilities)[kColumnGroups][2],
                                                Softmax& softmax) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  u32 masks[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = 8 * half + lane % 4 * 2;
    masks[half] = (first <= token && token < end ? 0xFFFFu : 0u) | (first <= token + 1 && token + 1 < end ? 0xFFFF0000u : 0u);
  }
#pragma unroll
  for (int step = 0; step < kDimSteps; ++step) {
    u32 values[4];
    ldmatrix_x4_transposed(
        values, in_tile(tile, slice * kSliceTokens + lane / 16 * 8 + lane % 8, 16 * step + lane / 8 % 2 * 8));
    if constexpr (kMasked) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] &= masks[i / 2];
    }
#pragma unroll
    for (int group = 0; group < kColumnGroups; ++group)
      Element::multiply(softmax.sums[group][step], values, probabilities[group]);
  }
}

// Multiplies a warp's slice of tile `tile`, which is in the stage of the ring's `place`-th tile; `number` is that of
// the CTA's task. If the CTA has aborted, the result is undefined.
__device__ __forceinline__ void attend_slice(const AttentionArgs& args, const Ring& ring, const TaskInHand& hand, int number,
                                             int tile, int place, int slice, const Queries& queries, Softmax& softmax) {
  const int stage = static_cast<u32>(place) % kStages, parity = static_cast<u32>(place) / kStages & 1;
  const int first_token = first_token_of(args, hand.task, hand.length, tile) + slice * kSliceTokens;
  const bool is_masked = first_token + kSliceTokens > hand.length - args.new_tokens + 1 ||
                         (kHasWindow && first_token < hand.length - args.window);
  float scores[kColumnGroups][4];
  bool hands_back = threadIdx.x % 32 == 0;
  hands_back &= wait_phase(args, ring, ring.k_full(stage), parity, kForKeys, number);
  multiply_keys(ring.k(stage), slice, queries, scores);
  if constexpr (kHasSoftCap) cap_scores(args, scores);
  if (is_masked) mask_scores(args, hand, first_token, scores);
  update(args.scale_log2, softmax, scores);
  u32 probabilities[kColumnGroups][2];
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
    probabilities[group][0] = transpose_in_registers(Element::narrow_two(scores[group][0], scores[group][1]));
    probabilities[group][1] = transpose_in_registers(Element::narrow_two(scores[group][2], scores[group][3]));
  }
  hands_back &= wait_phase(args, ring, ring.v_full(stage), parity, kForValues, number);
  if (is_masked) {
    const int first = kHasWindow ? first_seen(args, hand.length) - first_token : 0;
    multiply_values<true>(ring.v(stage), slice, first, hand.length - first_token, probabilities, softmax);
  } else {
    multiply_values<false>(ring.v(stage), slice, 0, kSliceTokens, probabilities, softmax);
  }
  __syncwarp();
  if (hands_back) mbarrier_arrive(ring.empty(stage));
}
