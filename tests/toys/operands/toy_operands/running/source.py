"""The device text of a running mean's task."""

from __future__ import annotations

from string import Template

from toy_operands.common import digest
from toy_operands.running.op import RunningOp
from tuner.extend import Dtype, Tile

_TEXT = Template("""\
  template <class Team>
  __device__ static void run(const OpArgs& op, const Task& task, unsigned char*, Team team) {
    for (int i = team.thread(); i < $m * $n; i += Team::kCount) {
      const int row = task.tile_m * $m + i / $n, column = task.tile_n * $n + i % $n;
      if (row >= op.m || column >= op.n) continue;
      const long long at = static_cast<long long>(row) * op.n + column;
      const float now = fmaf($keep, state(op)[at], Element::widen(op.a[at]));
      state(op)[at] = now;
      op.c[at] = static_cast<Element::Bits>(Element::narrow(now));
    }
  }
""")


def task_of(op: RunningOp, tile: Tile, chosen: None, dtype: Dtype) -> str:
    """CUDA C++ of any element type."""
    return _TEXT.substitute(m=tile.m, n=tile.n, keep=f"{float(op.keep)!r}f")


def version() -> str:
    """A digest of the text."""
    return digest(_TEXT.template)
