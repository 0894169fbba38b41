"""The device text of its task."""

from __future__ import annotations

import hashlib
from string import Template

from toy_clamp.op import ClampOp
from tuner.extend import Dtype, Tile

_TEXT = Template("""\
  template <class Team>
  __device__ static void run(const OpArgs& op, const Task& task, unsigned char* memory, Team team) {
    for (int i = team.thread(); i < $m * $n; i += Team::kCount) {
      const int row = task.tile_m * $m + i / $n, column = task.tile_n * $n + i % $n;
      if (row >= op.m || column >= op.n) continue;
      const long long at = static_cast<long long>(row) * op.n + column;
      const float x = Element::widen(op.a[at]);
      op.c[at] = static_cast<Element::Bits>(Element::narrow(x > $limit ? $limit : x < -$limit ? -$limit : x));
    }
  }
""")


def task_of(op: ClampOp, tile: Tile, chosen: None, dtype: Dtype) -> str:
    """CUDA C++ of any element type. NaN stays NaN, since neither comparison is true."""
    return _TEXT.substitute(m=tile.m, n=tile.n, limit=f"{float(op.limit)!r}f")


def version() -> str:
    """A digest of the text."""
    return hashlib.sha256(_TEXT.template.encode()).hexdigest()[:12]
