"""Sums of squares on the card: the tables that ops of a chain write for norms, and those of inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from cuda.bindings import driver

from tuner.core.plan.graph.norm_slots import squares_bytes
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling

from ...source.launch_args import WORD_BYTES, OpBuffers
from ...source.tools import kernel_of
from .launch import FP32_NAN, Guarded, check, fill, launch_config, programmatic_attribute

#: Threads of a CTA of `tuner_squares`, which processes one row.
_SQUARES_THREADS = 512


class SquaresTables:
    """The tables of one candidate, which all of its launches share; none if no op is normalized."""

    def __init__(self, workload: Workload, tiling: Tiling) -> None:
        """Allocates them, filled with NaN: their sizes depend on the tiles."""
        self._workload = workload
        sizes = {index: squares_bytes(workload, tiling, index) // WORD_BYTES for index in range(len(workload.tile_ops))}
        self._tables = {
            index: Guarded(np.full(size, FP32_NAN, dtype=np.uint32)) for index, size in sizes.items() if size > 0
        }

    def given_to(self, ops: tuple[OpBuffers, ...]) -> tuple[OpBuffers, ...]:
        """`ops` with the tables that each of them writes and reads."""
        if not self._tables:
            return ops
        given = []
        for index, buffers in enumerate(ops):
            producer = self._workload.norm_producer_of(index)
            if producer is not None:
                buffers = replace(buffers, row_scale=self._tables[producer].address)
            if index in self._tables:
                buffers = replace(buffers, squares=self._tables[index].address)
            given.append(buffers)
        return tuple(given)

    def poison(self) -> None:
        """Sets every word to NaN; on the current stream."""
        for table in self._tables.values():
            fill(table.words, FP32_NAN)

    def overwritten(self) -> str:
        """The table around which something was written, as text; empty if there is none."""
        names = [self._workload.tile_ops[index].name for index, table in self._tables.items() if not table.is_guarded()]
        return f"memory around the squares of {names[0]}" if names else ""


class InputSquares:
    """The squares of normalized inputs, computed by a small kernel before ours.

    The producer of such an input may write them; here none does, and the library's time includes its norm, too.
    """

    def __init__(self, workload: Workload, tools: Any) -> None:
        """`tools` has the kernel `tuner_squares` of each dtype."""
        self._workload = workload
        self._function = tools.get_function(kernel_of("tuner_squares", workload.dtype)).ptr

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int, *, is_programmatic: bool) -> None:
        """Enqueues it once for each such input; a programmatic launch may begin while the previous launch ends."""
        for source, squares, rows, columns in dict.fromkeys(self._needed(ops)):
            values = (
                ctypes.c_void_p(source),
                ctypes.c_void_p(squares),
                ctypes.c_uint32(columns),
            )
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            config = launch_config(rows, _SQUARES_THREADS, 0, stream)
            config.attrs = [programmatic_attribute()] if is_programmatic else []
            config.numAttrs = len(config.attrs)
            check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))

    def _needed(self, ops: tuple[OpBuffers, ...]) -> Iterator[tuple[int, int, int, int]]:
        for index, op in enumerate(self._workload.tile_ops):
            if op.norm and self._workload.norm_producer_of(index) is None:
                if op.norm != op.source:
                    continue  # the squares of an input that the op does not read come from elsewhere
                yield ops[index].a, ops[index].row_scale, op.m, op.k
