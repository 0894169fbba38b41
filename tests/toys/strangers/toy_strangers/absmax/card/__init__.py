"""The baseline on a GPU."""

from __future__ import annotations

from typing import Any

import cupy

from toy_strangers.absmax.op import AbsmaxOp
from toy_strangers.library import Naive
from tuner.extend import Arrays, OpData

_TEXT = """
extern "C" __global__ void naive(const u16* x, float* scale, u16* negated, u16* out, int n) {
  float largest = 0.0f;
  for (int at = 0; at < n; ++at) largest = fmaxf(largest, fabsf(widen(x[(long long)blockIdx.x * n + at])));
  if (threadIdx.x == 0) scale[blockIdx.x] = largest;
  for (int at = threadIdx.x; at < n; at += blockDim.x) {
    const long long place = (long long)blockIdx.x * n + at;
    const float quotient = largest > 0.0f ? widen(x[place]) / largest : 0.0f;
    out[place] = narrow(quotient);
    negated[place] = narrow(-quotient);
  }
}
"""


def baseline_of(op: AbsmaxOp, data: OpData, slots: list[Arrays], vendor: Any, tools: Any) -> Naive:
    """The library's best implementation."""
    names = (op.source, f"{op.name}.scale", f"{op.name}.negated", op.name)
    return Naive(_TEXT, data.workload.dtype, op.m, lambda arrays: (*(arrays[name] for name in names), cupy.int32(op.n)))
