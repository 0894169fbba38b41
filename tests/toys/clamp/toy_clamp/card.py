"""The baseline on a GPU: a plain kernel, since no library fuses it with a product."""

from __future__ import annotations

from collections.abc import Callable

import cupy

from toy_clamp.op import ClampOp
from tuner.extend import Dtype, WorkerError


def kernel_of(op: ClampOp, dtype: Dtype) -> Callable[[int, int, int], None]:
    """A launch on the current stream, by the addresses of X, a null pointer and the output.

    Raises:
        WorkerError: CuPy has no such elements.
    """
    if dtype.row.array_name != "float16":
        raise WorkerError(f"{op.name}: the plain kernel supports fp16, not {dtype}")
    shape, num_bytes = (op.m, op.n), 2 * op.m * op.n

    def view(address: int) -> cupy.ndarray:
        memory = cupy.cuda.UnownedMemory(address, num_bytes, op)
        return cupy.ndarray(shape, cupy.float16, cupy.cuda.MemoryPointer(memory, 0))

    def launch(a: int, w: int, c: int) -> None:
        cupy.clip(view(a), -op.limit, op.limit, out=view(c))

    cupy.clip(cupy.zeros(1, cupy.float16), -op.limit, op.limit)  # compiled before a launch is captured
    return launch
