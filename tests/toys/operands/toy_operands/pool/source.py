"""The device text of a pooling's task."""

from __future__ import annotations

from string import Template

from toy_operands.common import digest
from toy_operands.pool.op import PoolOp
from tuner.extend import Dtype, Tile

_TEXT = Template("""\
  template <class Team>
  __device__ static void run(const OpArgs& op, const Task& task, unsigned char*, Team team) {
    for (int i = team.thread(); i < $m * $n; i += Team::kCount) {
      const int pixel = task.tile_m * $m + i / $n, channel = task.tile_n * $n + i % $n;
      if (pixel >= op.m || channel >= op.n) continue;
      const long long row = pixel / $width * $stride, column = pixel % $width * $stride;
      float most = -3.402823466e38f;
      for (int y = 0; y < $stride; ++y)
        for (int x = 0; x < $stride; ++x) {
          const long long at = ((row + y) * $width * $stride + column + x) * op.n + channel;
          most = fmaxf(most, Element::widen(op.a[at]));
        }
      op.c[static_cast<long long>(pixel) * op.n + channel] = static_cast<Element::Bits>(Element::narrow(most));
    }
  }
""")


def task_of(op: PoolOp, tile: Tile, chosen: None, dtype: Dtype) -> str:
    """CUDA C++ of any element type."""
    return _TEXT.substitute(m=tile.m, n=tile.n, width=op.out_width, stride=op.stride)


def version() -> str:
    """A digest of the text."""
    return digest(_TEXT.template)
