// The pages of a cache that an epilogue writes to (rotary.cuh): a launch's arguments for them, and the place of a token.
//
// Lines. A line is the elements of a head and a token. From one line to the next are `line` elements: the head's own, or more
// where lines have gaps, as in a cache that packs keys and values of a token side by side. A page has lines of all its heads and
// tokens, and there may be more from one page to the next.
//
// This text is in the version of kernels with pages only: render.py.
#pragma once
#include "config.cuh"

constexpr bool kHasPages = kRotaryPageTokens > 0;
constexpr int kPageTokens = kHasPages ? kRotaryPageTokens : 1;

struct PageArgs {
  const int* pages;          // of each sequence max_pages page numbers
  int max_pages, num_pages;  // of a row of the table; of the cache
  int line, page_lines;      // elements of a line, lines of a page: from one to the next

  // Where the line of a KV head begins, of a token that is in a page.
  __device__ __forceinline__ long long element_of(long long page, int in_page, int kv_head, int kv_heads) const {
    const int inside = kRotaryHeadsFirst ? kv_head * kPageTokens + in_page : in_page * kv_heads + kv_head;
    return (page * page_lines + inside) * line;
  }
};
static_assert(sizeof(PageArgs) == 24, "the host lays PageArgs out in 24 bytes");

template <bool kAreThere>
struct AllPageArgs {
  PageArgs pages;
  __device__ __forceinline__ PageArgs page_args() const { return pages; }
};
template <>
struct AllPageArgs<false> {
  __device__ __forceinline__ PageArgs page_args() const { return {}; }
};
