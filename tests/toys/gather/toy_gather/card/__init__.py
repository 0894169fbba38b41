"""A gather's baseline on a GPU."""

from __future__ import annotations

from typing import Any

import cupy

from toy_gather.op import GatherOp
from toy_gather.source import ONES
from tuner.extend import Arrays, Dtype, OpData, OpLibrary, Vendor

_THREADS = 256
_TEXT = """
extern "C" __global__ void take(const unsigned* table, const int* rows, unsigned* out, int m, int columns) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < m * columns) out[at] = table[(long long)rows[at / columns] * columns + at % columns];
}

extern "C" __global__ void add(const unsigned* x, const unsigned* taken, const int* count, unsigned* out, int m,
                               int columns) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= m * columns) return;
  unsigned sum;
  asm("fma.rn.KINDx2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x[at]), "r"(ONES), "r"(taken[at]));
  out[at] = at / columns < *count ? sum : 0;
}
"""


class Baseline(OpLibrary):
    """Two consecutive kernels, as a framework runs them: rows are gathered, then added."""

    def __init__(self, op: GatherOp, dtype: Dtype) -> None:
        kind = str(dtype.row.tensor_kind)
        module = cupy.RawModule(code=_TEXT.replace("KIND", kind).replace("ONES", ONES[kind]))
        self._take, self._add = module.get_function("take"), module.get_function("add")
        self._op, self._columns = op, op.n // 2
        self._taken = cupy.empty((op.m, self._columns), dtype=cupy.uint32)

    def enqueue(self, arrays: Arrays, stream: int) -> None:
        """Enqueues one run on the current stream."""
        op, sizes = self._op, (cupy.int32(self._op.m), cupy.int32(self._columns))
        grid = (-(-op.m * self._columns // _THREADS),)
        rows, count = arrays[f"{op.name}.rows"], arrays[f"{op.name}.count"]
        self._take(grid, (_THREADS,), (arrays[f"{op.name}.table"], rows, self._taken, *sizes))
        self._add(grid, (_THREADS,), (arrays[op.source], self._taken, count, arrays[op.name], *sizes))

    def recipe(self) -> str:
        """How to call it."""
        return "index_select and an addition"


def baseline_of(op: GatherOp, data: OpData, slots: list[Arrays], vendor: Vendor, tools: Any) -> Baseline:
    """The library's best implementation."""
    return Baseline(op, data.workload.dtype)
