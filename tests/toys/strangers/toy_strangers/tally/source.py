"""The device text."""

from __future__ import annotations

import hashlib

from toy_strangers.common import ELEMENT, element
from toy_strangers.tally.op import TallyOp
from toy_strangers.tally.schedule import TallySchedule
from tuner.extend import Dtype

_TEXT = """
struct TallyArgs {
  const u16* x;
  float* state;
  const int* count;
  const int* rows;
  u16* out;
  float half;
};

extern "C" __global__ void __launch_bounds__(THREADS) tally(const __grid_constant__ TallyArgs args) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int row = args.rows[blockIdx.x];
  const float factor = row < *args.count ? 2.0f * args.half : 0.0f;
  for (int at = threadIdx.x; at < COLUMNS; at += THREADS) {
    const long long place = (long long)row * COLUMNS + at;
    const float sum = args.state[place] + factor * widen(args.x[place]);
    args.state[place] = sum;
    args.out[place] = narrow(sum);
  }
}
"""


def source_of(op: TallyOp, schedule: TallySchedule, dtype: Dtype) -> str:
    """CUDA C++."""
    return element(dtype) + _TEXT.replace("THREADS", str(schedule.threads)).replace("COLUMNS", str(op.k))


def version() -> str:
    """A digest of the text."""
    return hashlib.sha256((ELEMENT + _TEXT).encode()).hexdigest()[:12]
