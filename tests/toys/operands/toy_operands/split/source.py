"""The device text of a split's task."""

from __future__ import annotations

from string import Template

from toy_operands.common import digest
from toy_operands.split.op import SplitOp
from tuner.extend import Dtype, Tile

_TEXT = Template("""\
  template <class Team>
  __device__ static void run(const OpArgs& op, const Task& task, unsigned char*, Team team) {
    for (int i = team.thread(); i < $m * $n; i += Team::kCount) {
      const int row = task.tile_m * $m + i / $n, column = task.tile_n * $n + i % $n;
      if (row >= op.m || column >= op.n) continue;
      const long long at = static_cast<long long>(row) * op.n + column;
      const float x = Element::widen(op.a[at]), above = x > 0.0f ? x : 0.0f, below = x < 0.0f ? x : 0.0f;
      op.c[at] = static_cast<Element::Bits>(Element::narrow(factors(op)[column] * above));
      rest(op)[at] = static_cast<Element::Bits>(Element::narrow(below * Element::widen(gate(op)[at])));
    }
  }
""")


def task_of(op: SplitOp, tile: Tile, chosen: None, dtype: Dtype) -> str:
    """CUDA C++ of any element type. Each other tensor has a function: `gate(op)`."""
    return _TEXT.substitute(m=tile.m, n=tile.n)


def version() -> str:
    """A digest of the text."""
    return digest(_TEXT.template)
