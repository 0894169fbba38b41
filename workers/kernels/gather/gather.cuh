// Copies of an operand tile whose rows are not consecutive in memory: the op's kind defines their addresses.
//
// A kind defines Gather<kOp>: `Row` and `Column` with `row_of(row, num_rows)` and `column_of(column)`, `element_of`
// both, and `is_there`. Missing elements are zero in shared memory. A copy's elements are contiguous, since their
// number divides that of the channels.
#pragma once
#include "copy.cuh"

template <int kOp>
struct Gather;

template <int kOp, int kRows, int kTileK, int kBytes, CacheHint kHint>
struct GatheredCopy {
  using Plain = TileCopy<kRows, kTileK, kBytes, kHint>;
  using From = Gather<kOp>;
  using Row = typename From::Row;
  using Column = typename From::Column;
  static constexpr int kNumCopies = Plain::kNumCopies, kRowStride = Plain::kRowStride;
  // If a thread has few rows, their addresses stay in registers; otherwise they are recomputed for each stage.
  static constexpr bool kKeepsRows = kNumCopies <= 8;

  const u16* matrix;
  int first_row, num_rows;
  Row rows[kKeepsRows ? kNumCopies : 1];

  __device__ GatheredCopy(const u16* source, int row0, int rows_of_matrix, int, int)
      : matrix(source), first_row(row0 + Plain::row()), num_rows(rows_of_matrix) {
    if constexpr (kKeepsRows) {
#pragma unroll
      for (int i = 0; i < kNumCopies; ++i) rows[i] = From::row_of(first_row + i * kRowStride, num_rows);
    }
  }

  // Requests the stage that starts at column `k0` into `tile`.
  __device__ __forceinline__ void copy(u32 tile, int k0, int, int k) {
    const int k_of_thread = k0 + Plain::column();
    const Column column = From::column_of(k_of_thread);
#pragma unroll(kKeepsRows ? kNumCopies : 1)
    for (int i = 0; i < kNumCopies; ++i) {
      const int row = Plain::row() + i * kRowStride;
      if (kRows % kRowStride != 0 && row >= kRows) break;
      const u32 target = Plain::Layout::offset(row, Plain::column() / 8) + Plain::column() % 8 * 2;
      Row from;
      if constexpr (kKeepsRows) {
        from = rows[i];
      } else {
        from = From::row_of(first_row + i * kRowStride, num_rows);
      }
      Plain::copy_one(tile + target, matrix + From::element_of(from, column), k_of_thread < k && From::is_there(from, column));
    }
  }
};

// The copier of an op's A tiles.
template <int kOp, int kRows, int kTileK, int kBytes, CacheHint kHint, bool kGathers = gathers(kOp)>
struct InputCopyOf {
  using Type = TileCopy<kRows, kTileK, kBytes, kHint>;
};
template <int kOp, int kRows, int kTileK, int kBytes, CacheHint kHint>
struct InputCopyOf<kOp, kRows, kTileK, kBytes, kHint, true> {
  using Type = GatheredCopy<kOp, kRows, kTileK, kBytes, kHint>;
};
