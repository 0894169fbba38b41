"""The device text of a task of pairs."""

from __future__ import annotations

import hashlib
from string import Template

from toy_pairs.op import PairsOp
from tuner.extend import Dtype, Tile

_TEXT = Template("""\
  static constexpr int kTileM = $tile_m, kTileN = $tile_n;

  template <class Team>
  __device__ static void run(const OpArgs& op, const Task& task, unsigned char*, Team team) {
    for (int i = team.thread(); i < kTileM * kTileN; i += Team::kCount) {
      const int row = task.tile_m * kTileM + i / kTileN, column = task.tile_n * kTileN + i % kTileN;
      if (row >= op.m || column >= op.n) continue;
      const long long at = static_cast<long long>(row) * op.n + column;
      const float one = Element::widen(op.a[2 * at]), other = Element::widen(op.a[2 * at + 1]);
      op.c[at] = static_cast<Element::Bits>(Element::narrow(one > other ? one : other));
    }
  }
""")


def task_of(op: PairsOp, tile: Tile, chosen: None, dtype: Dtype) -> str:
    """CUDA C++ of any element type."""
    return _TEXT.substitute(tile_m=tile.m, tile_n=tile.n)


def version() -> str:
    """A digest of the text."""
    return hashlib.sha256(_TEXT.template.encode()).hexdigest()[:12]
