"""What a vendor's product leaves of an epilogue, by kernels of the measuring protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from tuner.core.problem.epilogue import AddedPart, Product
from tuner.core.problem.workload import Dtype
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.library_epilogue import Parts, kernels_of, split_epilogue
from tuner.workers.source.tools import kernel_of

#: Columns that a thread of `tuner_epilogue` takes at a time, where n is a multiple of it, and pairs of `tuner_rotary`.
EPILOGUE_WIDTH = 8
#: Of a CTA of `tuner_rotary`, and of the others, which have so many at most.
_CACHE_THREADS, _THREADS, _MAX_CTAS = 128, 256, 4096
#: Types of a part's numbers, as its kernel takes them.
_NUMBERS: dict[str, Callable[[Any], Any]] = {"float": cupy.float32, "int": cupy.int32, "bool": cupy.bool_}


class LibraryParts:
    """The kernels, for one element type."""

    def __init__(self, tools: Any, dtype: Dtype) -> None:
        """`tools` has a kernel for each `Part.library_kernel`, of each element type."""
        self._tools, self._dtype = tools, dtype

    def enqueue(self, op: Product, sums: int, buffer: OpBuffers) -> None:
        """All that is left, on the current stream; `sums` [m, rows of W] is where the product went."""
        columns = op.weight_rows
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


def _finish(function: Any, parts: Parts, op: Product, columns: int, sums: int, out: int, buffer: OpBuffers) -> None:
    """One pass over the sums."""
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
    """Turns queries and keys, and writes to the cache."""
    of, at = op.written_cache, buffer.parts
    assert of is not None, op.name
    addresses = (sums, buffer.c, *(at.get(name, 0) for name in ("keys", "values", "lengths", "pages", "frequencies")))
    sizes = (of.heads, of.kv_heads, of.head_dim, of.max_length, of.new_tokens)
    pages = (of.page_tokens or 0, of.heads_first, at.get("num_pages", 0))
    args = (*map(cupy.uint64, addresses), cupy.uint32(op.m), *map(cupy.int32, (*sizes, *pages)))
    function((-(-op.m * op.n // EPILOGUE_WIDTH // _CACHE_THREADS),), (_CACHE_THREADS,), args)


def _apply_added(function: Any, part: AddedPart, op: Product, columns: int, values: int, buffer: OpBuffers) -> None:
    """A package's part, in place."""
    numbers = [_NUMBERS[of](getattr(part, name)) for name, of in part.number_types().items()]
    pointers = [cupy.uint64(buffer.parts[one.name]) for one in part.pointers(op)]
    args = (cupy.uint64(values), cupy.uint32(op.m), cupy.uint32(columns), *numbers, *pointers)
    function((min(-(-op.m * columns // _THREADS), _MAX_CTAS),), (_THREADS,), args)
