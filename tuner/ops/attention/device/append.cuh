// Runs between the product that computes queries, keys and values of new tokens and their attention: rotates queries
// and keys, and appends keys and values to the cache. In a paged cache, a token is written to the page of its position
// in the table. Tokens with invalid positions or pages are not written; the attention after it reports them.
//
// Rotation. Elements i and i + kHeadDim / 2 of a head are a pair, rotated by the angle position * frequencies[i]. The
// position is that of the token in its sequence. It is computed in fp32 and rounded once.
//
// Threads. Each thread processes 8 pairs of one head of one new token, in vectors of 16 bytes: all of its loads are in
// flight together.
//
// Launches. Any operand may be written by the previous launch, and the one before that may still read the cache, so
// nothing is read or written before griddepcontrol.wait. Frequencies are loaded together with the rows, without
// additional latency.
#pragma once
#include "config_append.cuh"
#include "element.cuh"

struct AppendArgs {
  const u16* qkv;            // [sequences * new tokens, query heads, then KV heads of K, then those of V, kHeadDim]
  const float* frequencies;  // [kHeadDim / 2], radians per token
  u16* q;                    // [sequences * new tokens, query heads, kHeadDim], rotated
  u16* keys;                 // [sequences, KV heads, max_length, kHeadDim], or pages
  u16* values;               // the same
  const int* lengths;        // length of each sequence, including its new tokens
  const int* pages;          // [sequences, max_pages] page numbers; null without pages
  int sequences, kv_heads, query_heads, new_tokens, max_length;  // query heads that share a KV head
  int max_pages, num_pages;  // pages of the longest context; pages in the cache
};

constexpr int kVector = 8;  // elements per 16 bytes
constexpr int kThreadsOfHead = kHeadDim / 2 / kVector;

__device__ __forceinline__ u32 word_of(const uint4& vector, int index) {
  return index == 0 ? vector.x : index == 1 ? vector.y : index == 2 ? vector.z : vector.w;
}

// The pairs of two vectors, rotated: x' = x cos - y sin, y' = y cos + x sin.
__device__ __forceinline__ void rotate(uint4& x, uint4& y, const float (&frequencies)[kVector], float position) {
  u32 turned_x[kVector / 2], turned_y[kVector / 2];
#pragma unroll
  for (int two = 0; two < kVector / 2; ++two) {
    float new_x[2], new_y[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sine, cosine;
      sincosf(position * frequencies[2 * two + half], &sine, &cosine);
      const float old_x = Element::widen(static_cast<u16>(word_of(x, two) >> 16 * half));
      const float old_y = Element::widen(static_cast<u16>(word_of(y, two) >> 16 * half));
      new_x[half] = old_x * cosine - old_y * sine;
      new_y[half] = old_y * cosine + old_x * sine;
    }
    turned_x[two] = Element::narrow_two(new_x[0], new_x[1]);
    turned_y[two] = Element::narrow_two(new_y[0], new_y[1]);
  }
  x = {turned_x[0], turned_x[1], turned_x[2], turned_x[3]};
  y = {turned_y[0], turned_y[1], turned_y[2], turned_y[3]};
}

// The line of a new token in a KV head of both caches; negative if there is none, i.e. for a slot without a sequence, a
// full slot, or a page that is not in the cache.
__device__ __forceinline__ long long line_of(const AppendArgs& args, int sequence, int kv_head, int position) {
  if (position < 0 || position >= args.max_length) return -1;
  if constexpr (kPageTokens == 0)
    return (static_cast<long long>(sequence) * args.kv_heads + kv_head) * args.max_length + position;
  constexpr int kTokens = kPageTokens == 0 ? 1 : kPageTokens;
  const int page = args.pages[static_cast<long long>(sequence) * args.max_pages + position / kTokens];
  if (page < 0 || page >= args.num_pages) return -1;
  const long long first = static_cast<long long>(page) * (kHeadsFirst ? args.kv_heads : kTokens);
  return kHeadsFirst ? (first + kv_head) * kTokens + position % kTokens : (first + position % kTokens) * args.kv_heads + kv_head;
}

extern "C" __global__ void __launch_bounds__(kAppendThreads) tuner_append(const __grid_constant__ AppendArgs args) {
  launch_dependents();
  const int thread = static_cast<int>(blockIdx.x) * kAppendThreads + static_cast<int>(threadIdx.x);
  const int first = thread % kThreadsOfHead * kVector, line = thread / kThreadsOfHead;  // a line is one head of a row
  const int all_queries = args.query_heads * args.kv_heads, heads = all_queries + 2 * args.kv_heads;
  const int row = line / heads, head = line % heads, sequence = row / args.new_tokens;
  float frequencies[kVector];
  wait_for_prerequisites();
  if (sequence >= args.sequences) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i) frequencies[i] = args.frequencies[first + i];
  const u16* from = args.qkv + static_cast<long long>(line) * kHeadDim + first;
  const int length = args.lengths[sequence];
  uint4 x = load_relaxed_gpu(from), y = load_relaxed_gpu(from + kHeadDim / 2);
  const int position = length - args.new_tokens + row % args.new_tokens;
  const bool is_query = head < all_queries, is_value = head >= all_queries + args.kv_heads;
  const int kv_head = (head - all_queries) % args.kv_heads;
  const long long place = is_query ? 0 : line_of(args, sequence, kv_head, position);
  if (place < 0) return;
  if (!is_value) rotate(x, y, frequencies, static_cast<float>(position));
  u16* to = args.q + (static_cast<long long>(row) * all_queries + head) * kHeadDim;
  if (!is_query) to = (is_value ? args.values : args.keys) + place * kHeadDim;
  store_relaxed_gpu(to + first, x);
  store_relaxed_gpu(to + first + kHeadDim / 2, y);
}
