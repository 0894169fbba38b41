"""The device code that computes the positions of A's rows in the images."""

from __future__ import annotations

import hashlib
from string import Template

from tuner.ops.conv.op import ConvOp

_TEXT = Template("""\
  static constexpr int kOutHeight = $out_height, kOutWidth = $out_width, kHeight = $height, kWidth = $width;
  static constexpr int kChannels = $channels, kKernel = $kernel, kStride = $stride, kPadding = $padding;
  static constexpr int kNumColumns = kKernel * kKernel * kChannels;

  // A pixel of the output: where the first place of a filter is in the images, which may be outside.
  struct Row {
    int pixel, yx;
  };
  __device__ static __forceinline__ Row row_of(int row, int num_rows) {
    const int line = row / kOutWidth;
    const int y = line % kOutHeight * kStride - kPadding, x = row % kOutWidth * kStride - kPadding;
    const int pixel = (line / kOutHeight * kHeight + y) * kWidth + x;
    return {pixel, row < num_rows ? y * 65536 + (x & 0xffff) : -0x40000000};
  }

  // The same for a copy engine, which walks on from there.
  struct Start {
    int x, y, image;
  };
  __device__ static __forceinline__ Start start_of(int row) {
    const int line = row / kOutWidth;
    return {row % kOutWidth * kStride - kPadding, line % kOutHeight * kStride - kPadding, line / kOutHeight};
  }

  // A column: its place of a filter, and its channel.
  struct Column {
    int y, x, channel;
  };
  __device__ static __forceinline__ Column column_of(int column) {
    const int place = column / kChannels;
    return {place / kKernel, place % kKernel, column % kChannels};
  }

  __device__ static __forceinline__ int element_of(const Row& row, const Column& column) {
    return (row.pixel + column.y * kWidth + column.x) * kChannels + column.channel;
  }

  // Whether it is inside of an image; else it is zero.
  __device__ static __forceinline__ bool is_there(const Row& row, const Column& column) {
    const int y = (row.yx >> 16) + column.y, x = static_cast<short>(row.yx) + column.x;
    return static_cast<u32>(y) < kHeight && static_cast<u32>(x) < kWidth;
  }
""")


def gather_of(op: ConvOp) -> str:
    """CUDA C++: the members of a struct, as gather.cuh expects them."""
    names = ("out_height", "out_width", "height", "width", "channels", "kernel", "stride", "padding")
    return _TEXT.substitute({name: getattr(op, name) for name in names})


def version() -> str:
    """A digest of the device code."""
    return hashlib.sha256(_TEXT.template.encode()).hexdigest()[:12]
