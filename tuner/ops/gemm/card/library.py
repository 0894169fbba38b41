"""A workload's tile ops by the vendor's library."""

from __future__ import annotations

from typing import Any

import cupy

from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.ops.gemm.card.block_gemm import BlockGemm, LaidScales
from tuner.ops.gemm.card.cublaslt import WORKSPACE_BYTES, CublasLt
from tuner.ops.gemm.card.library_norms import LibraryNorms
from tuner.ops.gemm.card.library_parts import LibraryParts, has_sums
from tuner.ops.gemm.card.widened_gemm import product_of
from tuner.workers.gpu.launching.launch import fill
from tuner.workers.gpu.library.runners import SideStream
from tuner.workers.gpu.tensors.data import ProblemData
from tuner.workers.gpu.tensors.outputs import bits_type
from tuner.workers.gpu.tensors.own_ops import OwnCall, call_of
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.timing.library_choice import Picked


class LibraryRunner:
    """The vendor library's calls, with its own fused epilogue, and one elementwise kernel for the rest of it.

    They run in sequence; independent ops may also run side by side, each on its own stream. In a chain with norms,
    residuals are added by the products (beta = 1) or by the norms' kernels.
    """

    def __init__(self, lt: CublasLt, data: ProblemData, tools: Any) -> None:
        """`tools` has the kernels of `LibraryParts` and of `LibraryNorms`."""
        self._dtype = data.workload.dtype
        self._ops = data.workload.tile_ops
        #: Whether the products may run side by side: none reads another's output.
        self.can_run_beside = data.workload.is_independent
        scales = LaidScales(data.workload)
        self._parts = LibraryParts(tools, data.workload, scales)
        self._norms = LibraryNorms(data.workload, tools)
        self._lt_version = lt.version
        #: [op] the output of a product that needs another pass to become C (gate and up projection, both halves of
        #: rotated heads, scaled sums): [m, rows of W]; None for other ops.
        self._sums = [
            cupy.empty((op.m, op.weight_rows), bits_type(self._dtype.sums)) if has_sums(op, self._dtype) else None
            for op in self._ops
        ]
        slots = [data.slot_ops(slot) for slot in range(data.num_slots)]
        self._gemms = [
            product_of(lt, op, self._dtype, of_op, tools, scales)
            if op.is_plain_product
            else call_of(op, self._dtype, of_op[0])
            for op, of_op in zip(self._ops, zip(*slots, strict=True), strict=True)
        ]
        num_streams = len(self._ops) if self.can_run_beside else 1
        #: One workspace per stream: products that run side by side must not share one.
        self._workspaces = [cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8) for _ in range(num_streams)]
        self._sides = [SideStream() for _ in range(num_streams - 1)]
        #: The chosen algorithm of the heuristic for each op.
        self.choices = (0,) * len(self._gemms)
        self._beside = self._adds_in_norms = False

    @property
    def can_add_in_norms(self) -> bool:
        """Whether the kernels of norms may add residuals."""
        return self._norms.can_add

    def use(self, picked: Picked) -> None:
        """Selects the algorithms for later runs."""
        self.choices, self._beside, self._adds_in_norms = picked.choices, picked.beside, picked.adds_in_norms

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Number of the heuristic's algorithms for each op."""
        return tuple(gemm.num_algorithms for gemm in self._gemms)

    def recipe(self) -> LibraryRecipe:
        """How this calls the library. The recipe has no call for an op of a different kind."""
        ops = zip(self._gemms, self._ops, self.choices, strict=True)
        found = (gemm.recipe(op, algorithm=choice) for gemm, op, choice in ops)
        calls = tuple(call for call in found if call is not None)
        return LibraryRecipe(cublaslt_version=self._lt_version, beside=self._beside, calls=calls)

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues one product per op."""
        if not self._beside:
            self.enqueue_some(ops, stream, 0, len(ops))
            return
        self._norms.begin()
        for index, buffer in enumerate(ops):  # several ops may read one normalized input
            self._norms.input_of(index, buffer)
        forked = [side.fork(stream) for side in self._sides]
        self._launch(0, ops[0], stream, self._workspaces[0])
        for index, (side, own) in enumerate(zip(self._sides, forked, strict=True), start=1):
            with side.stream:  # the stream of an elementwise kernel
                self._launch(index, ops[index], own, self._workspaces[index])
        for side in self._sides:
            side.join(stream)

    def enqueue_some(self, ops: tuple[OpBuffers, ...], stream: int, begin: int, end: int) -> None:
        """Enqueues only ops `begin` to `end` of a run, in order; a run begins with the first one."""
        if begin == 0:
            self._norms.begin()
        for index in range(begin, end):
            self._launch(index, ops[index], stream, self._workspaces[0])

    def _launch(self, index: int, buffer: OpBuffers, stream: int, workspace: Any) -> None:
        """Enqueues one op; `stream` is the current one."""
        op, sums, call = self._ops[index], self._sums[index], self._gemms[index]
        if isinstance(call, OwnCall):
            call.enqueue(buffer)
            return
        out = buffer.c if sums is None else int(sums.data.ptr)
        left = self._norms.sums_of(index) if self._adds_in_norms else 0
        if isinstance(call, BlockGemm):
            call.scale(buffer)
        call.launch(
            *(self._norms.input_of(index, buffer), buffer.w, left or out, 0 if left else buffer.residual),
            *(workspace.data.ptr, stream),
            algorithm=self.choices[index],
        )
        if left:
            self._norms.add(index, buffer)
        self._parts.enqueue(op, out, buffer)

    def abort_record(self) -> str | None:
        """None: the library's kernels never wait."""
        return None

    def overwritten(self) -> str:
        """Empty: the library has no memory of its own that must not be overwritten."""
        return ""

    def poison(self) -> None:
        """Writes NaN to gate and up projections and to normalized tensors."""
        self._norms.poison()
        self._parts.poison()
        for sums in self._sums:
            if sums is not None:
                fill(sums, self._dtype.sums.row.nan_bits)
