"""The baseline of pairs on a GPU: a plain kernel, since no library has them."""

from __future__ import annotations

from collections.abc import Callable

import cupy

from toy_pairs.op import PairsOp
from tuner.extend import Dtype, WorkerError

_THREADS = 256
_TEXT = """
extern "C" __global__ void pairs(const unsigned int* x, unsigned short* out, long long size) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at >= size) return;
  const unsigned int two = x[at], one = two & 0xffff, other = two >> 16;
  // Of sign and magnitude: bits in the order of the numbers.
  const unsigned int first = one & 0x8000 ? ~one & 0xffff : one | 0x8000;
  const unsigned int second = other & 0x8000 ? ~other & 0xffff : other | 0x8000;
  out[at] = (unsigned short)(first > second ? one : other);
}
"""


def kernel_of(op: PairsOp, dtype: Dtype) -> Callable[[int, int, int], None]:
    """Returns a function that launches on the current stream, given the addresses of X, a null pointer and the output:
    one thread per element.

    Raises:
        WorkerError: the elements do not have 16 bits.
    """
    if dtype.row.bits != 16:
        raise WorkerError(f"{op.name}: the plain kernel supports elements of 16 bits, not {dtype}")
    size = op.m * op.n
    kernel = cupy.RawKernel(_TEXT, "pairs")
    kernel.compile()

    def launch(a: int, w: int, c: int) -> None:
        kernel((-(-size // _THREADS),), (_THREADS,), (cupy.uint64(a), cupy.uint64(c), cupy.int64(size)))

    return launch
