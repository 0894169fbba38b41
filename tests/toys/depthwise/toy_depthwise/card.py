"""The baseline of a depthwise convolution on a GPU: cuBLASLt has none, so it is a plain kernel."""

from __future__ import annotations

from collections.abc import Callable
from string import Template

import cupy

from toy_depthwise.op import DepthwiseOp
from tuner.extend import Dtype, WorkerError

_THREADS = 256
_TEXT = Template("""\
__device__ float widen(unsigned short bits) {
  float value;
  $widen
  return value;
}
__device__ unsigned short narrow(float value) {
  unsigned short bits;
  asm("$narrow %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
extern "C" __global__ void depthwise(const unsigned short* a, const unsigned short* w, unsigned short* c) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at >= $size) return;
  const int column = at % $n, row = at / $n % $length;
  float sum = 0.0f;
  for (int j = 0; j < $taps; ++j) {
    const int other = row + j - $taps / 2;
    if (0 <= other && other < $length) sum += widen(a[at + (j - $taps / 2) * $n]) * widen(w[column * $taps + j]);
  }
  c[at] = narrow(sum);
}
""")
_WIDEN = {
    "fp16": 'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));',
    "bf16": "value = __uint_as_float((unsigned int)bits << 16);",
}
_NARROW = {"fp16": "cvt.rn.f16.f32", "bf16": "cvt.rn.bf16.f32"}


def kernel_of(op: DepthwiseOp, dtype: Dtype) -> Callable[[int, int, int], None]:
    """Returns a function that launches on the current stream, given the addresses of A, W and the output: one thread
    per element.

    Raises:
        WorkerError: the kernel does not support such elements.
    """
    if dtype not in _WIDEN:
        raise WorkerError(f"{op.name}: the plain kernel supports {' and '.join(_WIDEN)}, not {dtype}")
    size = op.m * op.n
    text = _TEXT.substitute(
        widen=_WIDEN[dtype], narrow=_NARROW[dtype], size=size, n=op.n, length=op.length, taps=op.taps
    )
    kernel = cupy.RawKernel(text, "depthwise")
    kernel.compile()

    def launch(a: int, w: int, c: int) -> None:
        kernel((-(-size // _THREADS),), (_THREADS,), tuple(map(cupy.uint64, (a, w, c))))

    return launch
