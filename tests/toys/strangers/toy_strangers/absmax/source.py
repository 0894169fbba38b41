"""The device text of both kernels."""

from __future__ import annotations

import hashlib

from toy_strangers.absmax.op import AbsmaxOp
from toy_strangers.absmax.schedule import AbsmaxSchedule
from toy_strangers.common import ELEMENT, element
from tuner.extend import Dtype

_TEXT = """
struct PartsArgs {
  const u16* x;
  float* parts;
  int columns;
};
struct ScaleArgs {
  int blocks;
  const u16* x;
  const float* parts;
  float* scale;
  u16* negated;
  u16* out;
};

extern "C" __global__ void __launch_bounds__(THREADS) absmax_parts(const __grid_constant__ PartsArgs args) {
  __shared__ float of_warp[32];
  const int blocks = (COLUMNS + args.columns - 1) / args.columns;
  const int row = blockIdx.x / blocks, begin = blockIdx.x % blocks * args.columns;
  float largest = 0.0f;
  for (int at = begin + threadIdx.x; at < min(begin + args.columns, COLUMNS); at += THREADS)
    largest = fmaxf(largest, fabsf(widen(args.x[(long long)row * COLUMNS + at])));
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < THREADS / 32; ++warp) largest = fmaxf(largest, of_warp[warp]);
  if (threadIdx.x == 0) args.parts[blockIdx.x] = largest;
}

extern "C" __global__ void __launch_bounds__(THREADS) absmax_scale(const __grid_constant__ ScaleArgs args) {
  float largest = 0.0f;
  for (int block = 0; block < args.blocks; ++block)
    largest = fmaxf(largest, args.parts[blockIdx.x * args.blocks + block]);
  if (threadIdx.x == 0) args.scale[blockIdx.x] = largest;
  for (int at = threadIdx.x; at < COLUMNS; at += THREADS) {
    const long long place = (long long)blockIdx.x * COLUMNS + at;
    const float quotient = largest > 0.0f ? widen(args.x[place]) / largest : 0.0f;
    args.out[place] = narrow(quotient);
    args.negated[place] = narrow(-quotient);
  }
}
"""


def source_of(op: AbsmaxOp, schedule: AbsmaxSchedule, dtype: Dtype) -> str:
    """CUDA C++ of both."""
    return element(dtype) + _TEXT.replace("THREADS", str(schedule.threads)).replace("COLUMNS", str(op.n))


def version() -> str:
    """A digest of the text."""
    return hashlib.sha256((ELEMENT + _TEXT).encode()).hexdigest()[:12]
