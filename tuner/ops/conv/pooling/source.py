"""The device code of a pooling's task."""

from __future__ import annotations

import hashlib
from string import Template

from tuner.core.problem.dtype import Dtype
from tuner.core.schedule.tiling import Tile
from tuner.ops.conv.pooling.op import Function, PoolingOp

#: Channels that a thread loads at once, if they divide those of a pixel and of a tile: 16 bytes.
_WIDTH = 8
#: Maximum rows and columns of a window whose loads are all unrolled, so that they are in flight together.
_MOST_UNROLLED = 8

_TEXT = Template("""\
  static constexpr int kTileM = $m, kTileN = $n, kWidth = $vector, kChannels = $channels;
  static constexpr int kOutHeight = $out_height, kOutWidth = $out_width, kHeight = $height, kImageWidth = $width;
  static constexpr int kKernel = $kernel, kStride = $stride, kPadding = $padding;
  struct alignas(2 * kWidth) Channels {
    Element::Bits of[kWidth];
  };

  // A thread computes kWidth channels of a pixel of the output. A NaN in a window is its result.
  template <class Team>
  __device__ static void run(const OpArgs& op, const Task& task, unsigned char*, Team team) {
    constexpr int kGroups = kTileN / kWidth;
#pragma unroll 1
    for (int i = team.thread(); i < kTileM * kGroups; i += Team::kCount) {
      const int pixel = task.tile_m * kTileM + i / kGroups, channel = task.tile_n * kTileN + i % kGroups * kWidth;
      if (pixel >= op.m || channel >= op.n) continue;
      const int line = pixel / kOutWidth, image = line / kOutHeight;
      const int y0 = line % kOutHeight * kStride - kPadding, x0 = pixel % kOutWidth * kStride - kPadding;
      float made[kWidth];
#pragma unroll
      for (int c = 0; c < kWidth; ++c) made[c] = $start;
#pragma unroll $unrolled
      for (int y = 0; y < kKernel; ++y) {
#pragma unroll
        for (int x = 0; x < kKernel; ++x) {
          const u32 y_in = static_cast<u32>(y0 + y), x_in = static_cast<u32>(x0 + x);
          if (kPadding > 0 && (y_in >= kHeight || x_in >= kImageWidth)) continue;
          const int from = (image * kHeight + y0 + y) * kImageWidth + x0 + x;
          const Element::Bits* at = op.a + static_cast<long long>(from) * kChannels + channel;
          const Channels read = *reinterpret_cast<const Channels*>(at);
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            const float one = Element::widen(read.of[c]);
            $add
          }
        }
      }
      Channels out;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) out.of[c] = static_cast<Element::Bits>(Element::narrow($result));
      *reinterpret_cast<Channels*>(op.c + static_cast<long long>(pixel) * kChannels + channel) = out;
    }
  }
""")
_WAYS = {
    Function.MAX: ("-3.402823466e38f", "if (one > made[c] || one != one) made[c] = one;", "made[c]"),
    Function.AVERAGE: ("0.0f", "made[c] += one;", "made[c] * (1.0f / (kKernel * kKernel))"),
}


def task_of(op: PoolingOp, tile: Tile, chosen: None, dtype: Dtype) -> str:
    """CUDA C++ of any element type of 16 bits."""
    start, add, result = _WAYS[op.function]
    names = ("out_height", "out_width", "height", "width", "channels", "kernel", "stride", "padding")
    return _TEXT.substitute(
        {name: getattr(op, name) for name in names},
        m=tile.m,
        n=tile.n,
        vector=1 if op.channels % _WIDTH or tile.n % _WIDTH else _WIDTH,
        unrolled=op.kernel if op.kernel <= _MOST_UNROLLED else 1,
        start=start,
        add=add,
        result=result,
    )


def version() -> str:
    """A digest of the device code."""
    return hashlib.sha256((_TEXT.template + str(_WAYS)).encode()).hexdigest()[:12]
