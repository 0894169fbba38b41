// Rotary embedding, and the write of new keys and values to the cache: the epilogue of the product that makes queries, keys and
// values.
//
// Layout. W has the first halves of all heads, then the second halves: heads of queries, of keys, of values. So it is laid
// out as a gated op's W: a column of the tile is a pair, and its two sums are elements i and i + kHalfHead of a head. 8
// neighbours are pairs of one head. Queries go to C [m, heads, kRotaryHeadDim], keys and values to the caches.
//
// Rotation. A pair is turned by the angle position * frequencies[i], computed in fp32; position is the token's place in its
// sequence. Values are turned by nothing. All is rounded once.
//
// Launches. Lengths may be what the launch before has just written, as a residual may: whoever is here has inputs that were
// requested behind the wait for it. Launches before may read the caches to their end: each launch waits for that of the one
// before it, and this is behind the wait. Nobody else in this launch reads what is written here.
#pragma once
#include "activation.cuh"
#include "launch_args.cuh"
#include "norm.cuh"

constexpr int kHalfHead = kRotaryHeadDim / 2;
static_assert(kHalfHead % 8 == 0, "8 neighbours are of one head");

// A row of the product.
struct NewToken {
  int row, sequence, position;
};

__device__ __forceinline__ NewToken new_token(const RotaryArgs& args, const OpArgs& op, int row) {
  const int inside = min(row, op.m - 1), sequence = inside / args.new_tokens;
  return {row, sequence, args.lengths[sequence] - args.new_tokens + inside % args.new_tokens};
}

// Where the first element of a pair goes; null where it has no place. The second one's lies kHalfHead behind.
__device__ __forceinline__ u16* place_of(const RotaryArgs& args, const OpArgs& op, const NewToken& token, int column) {
  const int head = column / kHalfHead, pair = column % kHalfHead, kept = head - args.heads;
  if (kept < 0) return op.c + (static_cast<long long>(token.row) * args.heads + head) * kRotaryHeadDim + pair;
  if (token.position < 0 || token.position >= args.max_length) return nullptr;  // a slot without a sequence, or a full one
  const bool is_value = kept >= args.kv_heads;
  const int kv_head = is_value ? kept - args.kv_heads : kept;
  const long long line = (static_cast<long long>(token.sequence) * args.kv_heads + kv_head) * args.max_length + token.position;
  return (is_value ? args.values : args.keys) + line * kRotaryHeadDim + pair;
}

// Of both halves the same elements: two bytes, a pair of neighbours' or eight's.
template <class Elements>
__device__ __forceinline__ void store_pairs(const RotaryArgs& args, const OpArgs& op, const NewToken& token, int column,
                                            const Elements& first, const Elements& second) {
  u16* place = place_of(args, op, token, column);
  if (place == nullptr) return;
  *reinterpret_cast<Elements*>(place) = first;
  *reinterpret_cast<Elements*>(place + kHalfHead) = second;
}

struct Turn {
  float sine, cosine;
};

// 2 pi is 6.2831855 as fp32 has it, less 1.7484555e-7: a whole number of turns is taken off in two steps, of which the
// first is exact.
__device__ __forceinline__ Turn turn_by(float angle) {
  const float turns = rintf(angle * 0.15915494f);
  const float rest = fmaf(turns, 1.7484555e-7f, fmaf(turns, -6.2831855f, angle));
  return {sine_approx(rest), cosine_approx(rest)};
}

__device__ __forceinline__ Turn turn_of(const RotaryArgs& args, const NewToken& token, int column) {
  const bool is_turned = column / kHalfHead < args.heads + args.kv_heads;
  return turn_by(is_turned ? static_cast<float>(token.position) * args.frequencies[column % kHalfHead] : 0.0f);
}

__device__ __forceinline__ void turn_pair(float& x, float& y, const Turn& turn) {
  const float old_x = x;
  x = old_x * turn.cosine - y * turn.sine;
  y = y * turn.cosine + old_x * turn.sine;
}

// Two neighbours of both halves, rounded.
struct Pairs {
  u32 first, second;
};

// The pairs `column` and the next of a row, from the sums of both halves.
template <int kOp>
__device__ __forceinline__ Pairs finish_pairs(const RotaryArgs& args, const NewToken& token, int column, const float* x_sums,
                                              const float* y_sums, float scale, const float (&x_bias)[2],
                                              const float (&y_bias)[2]) {
  float x[2], y[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    x[c] = affine<scales_rows(kOp), kOps[kOp].bias>(x_sums[c], scale, x_bias[c]);
    y[c] = affine<scales_rows(kOp), kOps[kOp].bias>(y_sums[c], scale, y_bias[c]);
    turn_pair(x[c], y[c], turn_of(args, token, column + c));
  }
  return {pack_two<kBf16>(x[0], x[1]), pack_two<kBf16>(y[0], y[1])};
}
