"""Sums of squares on the card: the tables that ops of a chain write for the norms of their outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tuner.core.plan.norm_slots import squares_bytes
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling

from ..source.launch_args import WORD_BYTES, OpBuffers
from .launch import Guarded

#: The bits of an fp32 NaN.
_NAN = 0x7FFFFFFF


class SquaresTables:
    """The tables of one candidate, which all of its launches share; none where no op is normed."""

    def __init__(self, workload: Workload, tiling: Tiling) -> None:
        """Allocates them, poisoned: how large they are depends on the tiles."""
        self._workload = workload
        sizes = {index: squares_bytes(workload, tiling, index) // WORD_BYTES for index in range(len(workload.ops))}
        self._tables = {
            index: Guarded(np.full(size, _NAN, dtype=np.uint32)) for index, size in sizes.items() if size > 0
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
        """Every word becomes NaN; on the current stream."""
        for table in self._tables.values():
            table.words.fill(_NAN)

    def overwritten(self) -> str:
        """Around which table something was written, in words; empty where nothing was."""
        names = [self._workload.ops[index].name for index, table in self._tables.items() if not table.is_guarded()]
        return f"what lies around the squares of {names[0]}" if names else ""
