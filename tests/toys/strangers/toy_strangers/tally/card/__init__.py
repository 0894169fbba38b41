"""The baseline on a GPU."""

from __future__ import annotations

from typing import Any

import cupy

from toy_strangers.library import Naive
from toy_strangers.tally.op import TallyOp
from tuner.extend import Arrays, OpData

_TEXT = """
extern "C" __global__ void naive(const u16* x, float* state, const int* count, u16* out, int n) {
  for (int at = threadIdx.x; at < n; at += blockDim.x) {
    const long long place = (long long)blockIdx.x * n + at;
    if (blockIdx.x < *count) state[place] += widen(x[place]);
    out[place] = narrow(state[place]);
  }
}
"""


def baseline_of(op: TallyOp, data: OpData, slots: list[Arrays], vendor: Any, tools: Any) -> Naive:
    """The library's best implementation."""
    names = (op.source, f"{op.name}.state", f"{op.name}.count", op.name)
    return Naive(_TEXT, data.workload.dtype, op.m, lambda arrays: (*(arrays[name] for name in names), cupy.int32(op.k)))
