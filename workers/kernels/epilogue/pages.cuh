// The pages of a cache that an epilogue writes to (rotary.cuh): a launch's arguments for them, and the position of a
// token.
//
// Lines. A line consists of the elements of one head for one token. Consecutive lines are `line` elements apart: as
// many as a head has, or more if there are gaps, as in a cache that interleaves keys and values. A page has lines of
// all its heads and tokens; there may be gaps between pages, too.
//
// This file is part of the version only of kernels with pages: render.py.
#pragma once
#include "config.cuh"

constexpr bool kHasPages = kRotaryPageTokens > 0;
constexpr int kPageTokens = kHasPages ? kRotaryPageTokens : 1;

struct PageArgs {
  const int* pages;          // [sequences, max_pages] page numbers
  int max_pages, num_pages;  // pages in a row of the table; pages in the cache
  int line, page_lines;      // strides: elements per line, lines per page

  // Where the line of a KV head begins, for a token in a page.
  __device__ __forceinline__ long long element_of(long long page, int in_page, int kv_head, int kv_heads) const {
    const int inside = kRotaryHeadsFirst ? kv_head * kPageTokens + in_page : in_page * kv_heads + kv_head;
    return (page * page_lines + inside) * line;
  }
};
static_assert(sizeof(PageArgs) == 24, "the host packs PageArgs into 24 bytes");

template <bool kAreThere>
struct AllPageArgs {
  PageArgs pages;
  __device__ __forceinline__ PageArgs page_args() const { return pages; }
};
template <>
struct AllPageArgs<false> {
  __device__ __forceinline__ PageArgs page_args() const { return {}; }
};
