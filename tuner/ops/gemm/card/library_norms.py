"""The library's norms: a kernel before the products that read a normalized tensor.

In the library's version, RMSNorm is a separate kernel, which may also add the residual of the product before it. A
library's user has the norm's weight in that kernel; here it is folded into the next weights, as for our kernels.
"""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.errors import WorkerError
from tuner.workers.gpu.launching.launch import fill
from tuner.workers.gpu.tensors.outputs import bits_type
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.library_epilogue import split_epilogue
from tuner.workers.source.tools import kernel_of

#: Constants of `tuner_norm`: elements per load of a thread if they divide the row, loads per thread, threads per CTA.
_WIDTH, _TIMES, _MAX_THREADS = 8, 4, 1024


class LibraryNorms:
    """The normalized tensors of a workload, and the kernel that makes them."""

    def __init__(self, workload: Workload, tools: Any) -> None:
        """`tools` has the kernel `tuner_norm` of each dtype.

        Raises:
            WorkerError: an op normalizes a tensor that it does not read, or whose rows are too long.
        """
        self._workload = workload
        self._kernel = tools.get_function(kernel_of("tuner_norm", workload.dtype))
        dtype = bits_type(workload.dtype)
        #: The normalized tensors, by tensor and eps; several ops may read the same one. If an operand has scales and is
        #: not the normed tensor itself, `LibraryParts` scales the sums instead.
        self._normed: dict[tuple[str, float], Any] = {}
        for op in workload.tile_ops:
            if op.norm and (op.norm == op.source or workload.dtype.sums is workload.dtype):
                _check(op)
                self._normed.setdefault((op.norm, op.eps), cupy.empty((op.m, op.k), dtype))
        #: The outputs of products whose residual the norm's kernel adds.
        self._sums = {
            index: cupy.empty((op.m, op.n), dtype) for index, op in enumerate(workload.tile_ops) if self._can_add(index)
        }
        self._done: set[tuple[str, float]] = set()

    @property
    def can_add(self) -> bool:
        """Whether the kernel may add some product's residual."""
        return bool(self._sums)

    def _can_add(self, op_index: int) -> bool:
        op = self._workload.tile_ops[op_index]
        fused, rest = split_epilogue(op)
        is_plain = not rest and {"residual"} <= {part.field for part in fused} <= {"residual", "bias"}
        return is_plain and len({one for one in self._normed if one[0] == op.name}) == 1

    def begin(self) -> None:
        """Begins a new run of the workload: nothing is normalized yet."""
        self._done.clear()

    def sums_of(self, op_index: int) -> int:
        """The address for the output of a product whose residual the norm's kernel adds; 0 for other products."""
        return int(self._sums[op_index].data.ptr) if op_index in self._sums else 0

    def add(self, op_index: int, buffer: OpBuffers) -> None:
        """Adds the residual of a product in `sums_of` and normalizes the sum, on the current stream."""
        op = self._workload.tile_ops[op_index]
        key = next(one for one in self._normed if one[0] == op.name)
        self._launch(key, self.sums_of(op_index), buffer.residual, buffer.c)

    def input_of(self, op_index: int, buffer: OpBuffers) -> int:
        """The address of the input of the op's product. If it has not been normalized in this run, it is normalized on
        the current stream.
        """
        op = self._workload.tile_ops[op_index]
        key = (op.norm, op.eps)
        if key not in self._normed:
            return buffer.a
        if key not in self._done:
            self._launch(key, buffer.a, 0, 0)
        return int(self._normed[key].data.ptr)

    def poison(self) -> None:
        """Writes NaN wherever the next run must write."""
        for array in (*self._normed.values(), *self._sums.values()):
            fill(array, self._workload.dtype.row.nan_bits)

    def _launch(self, key: tuple[str, float], x: int, residual: int, added: int) -> None:
        out = self._normed[key]
        rows, columns = out.shape
        width = _WIDTH if columns % _WIDTH == 0 else 1
        threads = min(_MAX_THREADS, 32 * -(-columns // (32 * width)))
        addresses = (cupy.uint64(address) for address in (x, residual, added, out.data.ptr))
        args = (*addresses, cupy.uint32(columns), cupy.float32(key[1]))
        self._kernel((rows,), (threads,), args)
        self._done.add(key)


def _check(op: TileOp) -> None:
    if op.norm != op.source:
        problem = f"{op.name} reads {op.source} with the norm of {op.norm}"
        raise WorkerError(f"{problem}: the library's path only supports the norm of the tensor that the op reads")
    longest = _MAX_THREADS * _TIMES * (_WIDTH if op.k % _WIDTH == 0 else 1)
    if op.k > longest:
        raise WorkerError(
            f"{op.name} normalizes rows of {op.k} elements: the library's path supports at most {longest}"
        )
