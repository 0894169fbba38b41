"""The device text of a depthwise convolution's task."""

from __future__ import annotations

import hashlib
from string import Template

from toy_depthwise.op import DepthwiseOp
from toy_depthwise.schedule import DepthwiseSchedule
from tuner.extend import Dtype, Tile

_TEXT = Template("""\
  static constexpr int kTileM = $tile_m, kTileN = $tile_n, kLength = $length;
  static constexpr int kTaps = $taps, kRowsAtOnce = $rows_at_once;
  static constexpr int kRadius = kTaps / 2, kRows = kTileM + 2 * kRadius;

  template <class Team>
  __device__ static void run(const OpArgs& op, const Task& task, unsigned char* memory, Team team) {
    constexpr int kTilesOfOne = (kLength + kTileM - 1) / kTileM;
    Element::Bits* rows = reinterpret_cast<Element::Bits*>(memory);  // [kRows][kTileN], those around the tile, too
    const int first = task.tile_m % kTilesOfOne * kTileM, column0 = task.tile_n * kTileN;
    const long long sequence = static_cast<long long>(task.tile_m / kTilesOfOne) * kLength * op.n;
    for (int i = team.thread(); i < kRows * kTileN; i += Team::kCount) {
      const int row = first - kRadius + i / kTileN, column = column0 + i % kTileN;
      const bool is_there = 0 <= row && row < kLength && column < op.n;
      rows[i] = is_there ? op.a[sequence + static_cast<long long>(row) * op.n + column] : Element::Bits(0);
    }
    team.sync();
    for (int i = team.thread(); i < kTileM / kRowsAtOnce * kTileN; i += Team::kCount) {
      const int row0 = i / kTileN * kRowsAtOnce, column = column0 + i % kTileN;
      if (column >= op.n) continue;
      float sums[kRowsAtOnce] = {};
#pragma unroll
      for (int j = 0; j < kRowsAtOnce + 2 * kRadius; ++j) {
        const float one = Element::widen(rows[(row0 + j) * kTileN + i % kTileN]);
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (0 <= j - r && j - r < kTaps) sums[r] = fmaf(Element::widen(op.w[column * kTaps + j - r]), one, sums[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const long long row = first + row0 + r;
        const Element::Bits rounded = static_cast<Element::Bits>(Element::narrow(sums[r]));
        if (row < kLength) op.c[sequence + row * op.n + column] = rounded;
      }
    }
  }
""")


def task_of(op: DepthwiseOp, tile: Tile, chosen: DepthwiseSchedule | None, dtype: Dtype) -> str:
    """CUDA C++ for any element type."""
    return _TEXT.substitute(
        tile_m=tile.m,
        tile_n=tile.n,
        length=op.length,
        taps=op.taps,
        rows_at_once=chosen.rows_at_once if chosen else 1,
    )


def version() -> str:
    """A digest of the text."""
    return hashlib.sha256(_TEXT.template.encode()).hexdigest()[:12]
