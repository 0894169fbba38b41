"""The parts of an epilogue that the library's product cannot apply; kernels of the measuring protocol apply them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cupy

from tuner.core.problem.epilogue import AddedPart, Part, Product
from tuner.core.problem.epilogue.scales.group_scale import GroupOperand, GroupScale
from tuner.core.problem.epilogue.scales.operand import Operand
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.errors import WorkerError
from tuner.ops.gemm.card.block_gemm import LaidScales
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.library_epilogue import Parts, kernels_of, split_epilogue
from tuner.workers.source.tools import kernel_of

#: Columns per step of a `tuner_epilogue` thread if n is a multiple of it, and pairs per step of a `tuner_rotary`
#: thread.
EPILOGUE_WIDTH = 8
#: Threads per CTA of `tuner_rotary`, and of the other kernels; and the maximum CTAs of a launch.
_CACHE_THREADS, _THREADS, _MAX_CTAS = 128, 256, 4096
#: Maximum threads of a CTA that processes one row.
_MAX_THREADS = 1024
#: The parts that the kernel for sums of a different type applies, and the fields with its factors.
_SCALED = {"row_scale", "channel_scale", "activation", "gated", "output_scale"}
_FACTORS = ("channel_scale_factors", "output_scale_factor")
#: The parts that the kernel for a residual stream applies, and those of them that the kernel for sums does not apply.
_STREAMED = {"row_scale", "channel_scale", "residual", Operand.name, GroupOperand.name}
_OF_STREAM = _STREAMED - _SCALED
#: The parts that the kernel for scales of groups applies.
_GROUPED = {"row_scale", "channel_scale", "activation", "gated", GroupScale.name}
#: Types of a part's numbers, as its kernel takes them.
_NUMBERS: dict[str, Callable[[Any], Any]] = {"float": cupy.float32, "int": cupy.int32, "bool": cupy.bool_}


class LibraryParts:
    """The kernels, for one workload."""

    def __init__(self, tools: Any, workload: Workload, scales: LaidScales) -> None:
        """`tools` has the kernel of each `Part.library_kernel` for each element type; `scales` gets those of groups."""
        self._tools, self._dtype, self._scales = tools, workload.dtype, scales
        #: If sums have a different type than elements: the factors of the norm of an op's rows, and eps, by op.
        self._norms: dict[str, tuple[Any, float]] = {}
        if self._dtype.sums is not self._dtype:
            rows = {op.norm: (op.m, op.eps) for op in workload.tile_ops if op.norm not in ("", op.source)}
            self._norms = {name: (cupy.empty(m, cupy.float32), eps) for name, (m, eps) in rows.items()}

    def poison(self) -> None:
        """Writes NaN wherever the next run must write."""
        for factors, _ in self._norms.values():
            factors.fill(cupy.nan)

    def enqueue(self, op: TileOp, sums: int, buffer: OpBuffers) -> None:
        """Enqueues the rest of the epilogue, on the current stream; `sums` [m, rows of W] is the product's output."""
        columns = op.weight_rows
        if self._dtype.sums is not self._dtype:
            if has_sums(op, self._dtype):
                self._scale(op, sums, buffer)
            return
        for kernel, parts in kernels_of(split_epilogue(op)[1]):
            function, out = self._tools.get_function(kernel_of(kernel, self._dtype)), sums
            narrows = any(part.rows_per_column > 1 for part in parts)
            if narrows:
                columns, out = op.n, buffer.c
            match parts[0]:
                case AddedPart() as added:
                    _apply_added(function, added, op, columns, sums, buffer)
                case part if part.changes_cache:
                    _turn(function, op, sums, buffer)
                case _:
                    _finish(function, parts, op, columns, sums, out, buffer)
            sums = out

    def _scale(self, op: TileOp, sums: int, buffer: OpBuffers) -> None:
        """Applies factors, activation, gate and rounding in one kernel, as a user of the library would write it.

        Raises:
            WorkerError: the kernel does not support a part of the op.
        """
        stored, parts = op.stored_in(self._dtype), {_name_of(part): part for part in split_epilogue(op)[1]}
        if op.name in self._norms or _OF_STREAM & parts.keys():
            self._stream(op, sums, buffer)
            return
        if GroupScale.name in parts:
            self._scale_groups(op, parts, sums, buffer)
            return
        if others := [part.step(op) for name, part in parts.items() if name not in _SCALED]:
            raise WorkerError(f"{op.name}: no library kernel for {self._dtype} supports: {', '.join(others)}")
        if stored not in (self._dtype, self._dtype.sums):
            raise WorkerError(f"{op.name}: no library kernel for {self._dtype} stores {stored}")
        name = "tuner_scaled" if stored is self._dtype else "tuner_scaled_sums"
        factors = (self._row_scale(op, buffer), *(buffer.parts.get(name, 0) for name in _FACTORS))
        args = (
            *map(cupy.uint64, (sums, buffer.c, *factors)),
            cupy.uint32(op.m),
            cupy.uint32(op.n),
            cupy.int32(op.activation.row.number if "activation" in parts else 0),
            cupy.int32("gated" in parts),
        )
        num_vectors = op.m * op.n // (EPILOGUE_WIDTH if op.n % EPILOGUE_WIDTH == 0 else 1)
        function = self._tools.get_function(kernel_of(name, self._dtype))
        function((min(-(-num_vectors // _THREADS), _MAX_CTAS),), (_THREADS,), args)

    def _scale_groups(self, op: TileOp, parts: Mapping[str, Part], sums: int, buffer: OpBuffers) -> None:
        """Applies scales, activation and gate, and quantises groups, in one kernel.

        Raises:
            WorkerError: the kernel does not support a part of the op.
        """
        if others := [part.step(op) for name, part in parts.items() if name not in _GROUPED]:
            raise WorkerError(f"{op.name}: no library kernel with scales of groups supports: {', '.join(others)}")
        laid = self._scales.made[op.name]
        scales = (self._row_scale(op, buffer), buffer.parts.get("channel_scale_factors", 0))
        addresses = (sums, buffer.c, *scales, buffer.parts["group_scale_factors"], int(laid.data.ptr))
        args = (
            *map(cupy.uint64, addresses),
            *map(cupy.uint32, (laid.shape[1], op.m, op.n)),
            cupy.int32(op.activation.row.number if "activation" in parts else 0),
            cupy.int32("gated" in parts),
        )
        num_groups = op.m * laid.shape[0]
        function = self._tools.get_function(kernel_of("tuner_scaled_groups", self._dtype))
        function((min(-(-32 * num_groups // _THREADS), _MAX_CTAS),), (_THREADS,), args)

    def _row_scale(self, op: TileOp, buffer: OpBuffers) -> int:
        """The address of the rows' factors, which are given or belong to a norm."""
        return int(self._norms[op.norm][0].data.ptr) if op.norm in self._norms else buffer.row_scale

    def _stream(self, op: TileOp, sums: int, buffer: OpBuffers) -> None:
        """Applies scales and the residual, and makes the next products' operand and the factors of a norm, in one
        kernel.

        Raises:
            WorkerError: the kernel does not support a part of the op.
        """
        parts = {_name_of(part): part for part in split_epilogue(op)[1]}
        if others := [part.step(op) for name, part in parts.items() if name not in _STREAMED]:
            raise WorkerError(f"{op.name}: no library kernel with a residual stream supports: {', '.join(others)}")
        if (stored := op.stored_in(self._dtype)) is not self._dtype.sums:
            raise WorkerError(f"{op.name}: no library kernel for {self._dtype} has a residual stream of {stored}")
        factors, eps = self._norms.get(op.name, (None, 0.0))
        laid = self._scales.made.get(GroupOperand.values_of(op.name))
        part = Operand if laid is None else GroupOperand
        channels, *operand = (
            buffer.parts.get(name, 0)
            for name in ("channel_scale_factors", *(f"{part.name}_{own}" for own in ("factors", "values", "scales")))
        )
        scales, room = (0, 0) if laid is None else (int(laid.data.ptr), laid.shape[1])
        addresses = (sums, buffer.c, self._row_scale(op, buffer), channels, buffer.residual, *operand, scales)
        norms = 0 if factors is None else int(factors.data.ptr)
        sizes = map(cupy.uint32, (room, op.m, op.n))
        args = (*map(cupy.uint64, (*addresses, norms)), cupy.float32(eps), *sizes)
        threads = min(_MAX_THREADS, 32 * -(-op.n // (32 * EPILOGUE_WIDTH)))
        self._tools.get_function(kernel_of("tuner_scaled_stream", self._dtype))((op.m,), (threads,), args)


def _name_of(part: Part) -> str:
    return part.name if isinstance(part, AddedPart) else part.field


def has_sums(op: TileOp, dtype: Dtype) -> bool:
    """Whether the library's product only computes sums, from which a kernel makes C."""
    is_left = bool(split_epilogue(op)[1]) or op.norm not in ("", op.source)
    is_scaled = dtype.sums is not dtype and (op.stored_in(dtype) is not dtype.sums or is_left)
    return op.rows_per_column > 1 or is_scaled


def _finish(function: Any, parts: Parts, op: Product, columns: int, sums: int, out: int, buffer: OpBuffers) -> None:
    """Finishes the epilogue in one pass over the sums."""
    does, given = {part.field for part in parts}, {part.slot: getattr(buffer, part.slot) for part in parts if part.slot}
    num_vectors = op.m * columns // (EPILOGUE_WIDTH if columns % EPILOGUE_WIDTH == 0 else 1)
    args = (
        *map(cupy.uint64, (sums, out, *(given.get(slot, 0) for slot in ("bias", "residual", "row_scale")))),
        cupy.uint32(op.m),
        cupy.uint32(columns),
        cupy.int32(op.activation.row.number if "activation" in does else 0),
        cupy.int32("gated" in does),
    )
    function((min(-(-num_vectors // _THREADS), _MAX_CTAS),), (_THREADS,), args)


def _turn(function: Any, op: Product, sums: int, buffer: OpBuffers) -> None:
    """Rotates queries and keys, and writes to the cache."""
    of, at = op.written_cache, buffer.parts
    assert of is not None, op.name
    addresses = (sums, buffer.c, *(at.get(name, 0) for name in ("keys", "values", "lengths", "pages", "frequencies")))
    sizes = (of.heads, of.kv_heads, of.head_dim, of.max_length, of.new_tokens)
    pages = (of.page_tokens or 0, of.heads_first, at.get("num_pages", 0))
    args = (*map(cupy.uint64, addresses), cupy.uint32(op.m), *map(cupy.int32, (*sizes, *pages)))
    function((-(-op.m * op.n // EPILOGUE_WIDTH // _CACHE_THREADS),), (_CACHE_THREADS,), args)


def _apply_added(function: Any, part: AddedPart, op: Product, columns: int, values: int, buffer: OpBuffers) -> None:
    """Applies a package's part in place."""
    numbers = [_NUMBERS[of](getattr(part, name)) for name, of in part.number_types().items()]
    pointers = [cupy.uint64(buffer.parts[one.name]) for one in part.pointers(op)]
    args = (cupy.uint64(values), cupy.uint32(op.m), cupy.uint32(columns), *numbers, *pointers)
    function((min(-(-op.m * columns // _THREADS), _MAX_CTAS),), (_THREADS,), args)
