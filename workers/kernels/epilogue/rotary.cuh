// Rotary embedding, and the write of new keys and values to the cache: the epilogue of the product that computes
// queries, keys and values.
//
// Layout. W has the first halves of all heads, then the second halves: heads of queries, of keys, of values. So its
// layout is that of a gated op's W: a column of the tile is a pair, and its two sums are elements i and i + kHalfHead
// of a head. Any aligned 8 columns belong to one head. Queries go to C [m, heads, kRotaryHeadDim], keys and values to
// the caches.
//
// Pages. A cache with kRotaryPageTokens has pages, [KV heads, tokens, elements] or [tokens, KV heads, elements], and a
// page table per sequence. A token is written to the page of its position in the table. So nothing is written to the
// page of another sequence, unless the table contains it.
//
// Invalid input. A slot without a sequence has the length 0, and writes to no cache. A token after max_length, or whose
// page is not in the cache, is not written. Such a length or page is reported in the workspace.
// Nothing waits for the missing token, so the launch continues.
//
// Rotation. A pair is rotated by the angle position * frequencies[i], computed in fp32; position is that of the token
// in its sequence. Values are not rotated. Each result is rounded once.
//
// Launches. Like a residual, the lengths may have just been written by the previous launch: an epilogue runs after
// inputs that were requested after the wait for that launch. Earlier launches may read the caches until their end: each
// launch waits for the end of the one before it, and these writes come after that wait. Page numbers are read after it,
// too. No other task of this launch reads what is written here.
#pragma once
#include "activation.cuh"
#include "launch_args.cuh"
#include "norm.cuh"
#include "pages.cuh"

constexpr int kHalfHead = kRotaryHeadDim / 2;
static_assert(kHalfHead % 8 == 0, "8 consecutive elements belong to one head");

enum Refusal : u32 { kNothingRefused, kLengthRefused, kPageRefused };

__device__ inline void refuse(Workspace* workspace, Refusal kind, int sequence, int value, int end) {
  RefusedRecord& record = workspace->refused;
  if (compare_and_swap_relaxed_gpu(&record.kind, kNothingRefused, kind) != kNothingRefused) return;
  record.sequence = sequence, record.value = value, record.end = end;
}

// A row of the product.
struct NewToken {
  int row, sequence, length, position;
  int page;  // page number in the table; the sequence if the cache is contiguous
};

__device__ __forceinline__ bool has_place(const RotaryArgs& args, int position) {
  return position >= 0 && position < args.max_length;
}

__device__ __forceinline__ NewToken new_token(const LaunchArgs& launch, const OpArgs& op, int row) {
  const RotaryArgs& args = *launch.rotary_args();
  const int inside = min(row, op.m - 1), sequence = inside / args.new_tokens, length = args.lengths[sequence];
  NewToken token{row, sequence, length, length - args.new_tokens + inside % args.new_tokens, sequence};
  if constexpr (kHasPages) {
    const PageArgs pages = launch.page_args();
    if (has_place(args, token.position))
      token.page = pages.pages[static_cast<long long>(sequence) * pages.max_pages + token.position / kPageTokens];
  }
  return token;
}

// Whether a launch's length and page of a new token are valid; invalid ones are reported.
__device__ __forceinline__ bool is_kept(const LaunchArgs& launch, const NewToken& token) {
  const RotaryArgs& args = *launch.rotary_args();
  if (token.length < 0 || token.length > args.max_length)
    refuse(launch.workspace, kLengthRefused, token.sequence, token.length, args.max_length + 1);
  if (!has_place(args, token.position)) return false;  // a slot without a sequence, or a full one
  if constexpr (kHasPages) {
    const int num_pages = launch.page_args().num_pages;
    if (token.page < 0 || token.page >= num_pages) {
      refuse(launch.workspace, kPageRefused, token.sequence, token.page, num_pages);
      return false;
    }
  }
  return true;
}

// Where the line of a KV head begins in both caches, for a token that is stored.
__device__ __forceinline__ long long element_of(const LaunchArgs& launch, const NewToken& token, int kv_head) {
  const RotaryArgs& args = *launch.rotary_args();
  const long long page = token.page;
  if constexpr (kHasPages) return launch.page_args().element_of(page, token.position % kPageTokens, kv_head, args.kv_heads);
  return ((page * args.kv_heads + kv_head) * args.max_length + token.position) * kRotaryHeadDim;
}

// The destination of the first element of a pair; null if there is none. The second element is kHalfHead later.
__device__ __forceinline__ Element::Bits* place_of(const LaunchArgs& launch, const OpArgs& op, const NewToken& token, int column) {
  const RotaryArgs& args = *launch.rotary_args();
  const int head = column / kHalfHead, pair = column % kHalfHead, kept = head - args.heads;
  if (kept < 0) return op.c + (static_cast<long long>(token.row) * args.heads + head) * kRotaryHeadDim + pair;
  if (!is_kept(launch, token)) return nullptr;
  const bool is_value = kept >= args.kv_heads;
  const int kv_head = is_value ? kept - args.kv_heads : kept;
  return (is_value ? args.values : args.keys) + element_of(launch, token, kv_head) + pair;
}

// The same elements of both halves: one, two or eight adjacent ones.
template <class Elements>
__device__ __forceinline__ void store_pairs(const LaunchArgs& launch, const OpArgs& op, const NewToken& token, int column,
                                            const Elements& first, const Elements& second) {
  Element::Bits* place = place_of(launch, op, token, column);
  if (place == nullptr) return;
  *reinterpret_cast<Elements*>(place) = first;
  *reinterpret_cast<Elements*>(place + kHalfHead) = second;
}

struct Turn {
  float sine, cosine;
};

// In fp32, 2 pi is 6.2831855 minus 1.7484555e-7: whole turns are subtracted in two steps, the first of which is exact.
__device__ __forceinline__ Turn turn_by(float angle) {
  const float turns = rintf(angle * 0.15915494f);
  const float rest = fmaf(turns, 1.7484555e-7f, fmaf(turns, -6.2831855f, angle));
  return {sine_approx(rest), cosine_approx(rest)};
}

__device__ __forceinline__ Turn turn_of(const LaunchArgs& launch, const NewToken& token, int column) {
  const RotaryArgs& args = *launch.rotary_args();
  const bool is_turned = column / kHalfHead < args.heads + args.kv_heads;
  return turn_by(is_turned ? static_cast<float>(token.position) * args.frequencies[column % kHalfHead] : 0.0f);
}

__device__ __forceinline__ void turn_pair(float& x, float& y, const Turn& turn) {
  const float old_x = x;
  x = old_x * turn.cosine - y * turn.sine;
  y = y * turn.cosine + old_x * turn.sine;
}
