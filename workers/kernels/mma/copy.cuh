// Global -> shared copies of an operand tile, rows of kTileK elements, one pipeline stage at a time.
//
// Layout. Rows are cut into 16-byte chunks. Chunk c of row r is at position c ^ swizzle(r), so that the eight rows that
// one ldmatrix reads are in eight different bank groups.
//
// Ragged edges. Rows beyond the matrix and columns beyond k are copied with zero valid bytes, i.e. they are zero in
// shared memory. A copy is never wider than the alignment of a row, so no copy straddles the end of k. A pointer may be
// outside the matrix if zero bytes are read through it.
#pragma once
#include "config.cuh"
#include "element.cuh"

template <int kTileK>
struct RowLayout {
  static constexpr int kChunks = kTileK / 8;
  static constexpr int kRowBytes = kTileK * 2;
  static_assert(kChunks == 4 || kChunks % 8 == 0, "the swizzle supports rows of 4 chunks and of multiples of 8");

  __device__ static constexpr int offset(int row, int chunk) {
    const int swizzle = kChunks == 4 ? (row >> 1) & 3 : row & 7;
    return row * kRowBytes + ((chunk ^ swizzle) * 16);
  }
};

// One thread's share of a [kRows, kTileK] tile: the same column of every kRowStride-th row.
template <int kRows, int kTileK, int kBytes, CacheHint kHint>
struct TileCopy {
  using Layout = RowLayout<kTileK>;
  static constexpr int kElements = kBytes / 2;
  static constexpr int kCopiesPerRow = kTileK / kElements;
  static constexpr int kRowStride = kNumThreads / kCopiesPerRow;
  static constexpr int kNumCopies = (kRows + kRowStride - 1) / kRowStride;
  static_assert(kNumThreads % kCopiesPerRow == 0, "each thread always copies the same column");
  // If the stride is a multiple of 8 rows, the swizzle is the same in all of them and offsets are immediates.
  static constexpr bool kSameSwizzle = kRowStride % 8 == 0;

  const u16* source;  // address in this thread's first row, at its column of the next stage
  u32 first;          // its destination in the stage's tile
  int rows_left;      // rows of the matrix, counted from this thread's first row

  __device__ static int row() { return static_cast<int>(threadIdx.x) / kCopiesPerRow; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kCopiesPerRow * kElements; }

  // The first stage starts at column `first_k`.
  __device__ TileCopy(const u16* matrix, int row0, int num_rows, int k, int first_k)
      : source(matrix + static_cast<long long>(row0 + row()) * k + column() + first_k),
        first(Layout::offset(row(), column() / 8) + column() % 8 * 2),
        rows_left(num_rows - row0 - row()) {}

  // Requests the stage that starts at column `k0` into `tile`; call once per stage, in order. The next one starts
  // `stride_k` columns further.
  __device__ __forceinline__ void copy(u32 tile, int k0, int stride_k, int k) {
    const int rows_valid = k0 + column() < k ? rows_left : 0;
    const u16* from = source;
#pragma unroll(kBytes == 16 ? kNumCopies : 1)
    for (int i = 0; i < kNumCopies; ++i) {
      const int below = i * kRowStride;
      if (kRows % kRowStride != 0 && row() + below >= kRows) break;
      const u32 target = kSameSwizzle ? first + below * Layout::kRowBytes
                                      : Layout::offset(row() + below, column() / 8) + column() % 8 * 2;
      copy_one(tile + target, from, below < rows_valid);
      from += kRowStride * k;  // 32-bit product: a matrix has at most 2^31 - 1 elements
    }
    source += stride_k;
  }

  __device__ __forceinline__ static void copy_one(u32 target, const u16* from, bool valid) {
    if constexpr (kBytes >= 4) {
      cp_async<kBytes, kHint>(target, from, valid ? kBytes : 0);
    } else {
      // Bypasses L1, like cp.async.cg: another SM may have just written the intermediate.
      store_shared(target, valid ? load_past_l1<kHint>(from) : static_cast<u16>(0));
    }
  }
};
