"""Waits: the records by which each task waits for what it reads of other ops of its launch.

What a task reads as A it waits for before its k-steps. What it reads in its epilogue it waits for there, unless other
waits cover that: its own for A, or those of the tiles that these stand for (`tile_graph.Waits`). What it reads in band
needs no wait before its k-steps, and counts as read in its epilogue. Tasks with the same needs share their records.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tuner.core.plan.distinct import distinct_rows
from tuner.core.plan.edges import Edges, EpilogueEdges, Waits
from tuner.core.plan.signals import Signals, WaitRecord
from tuner.core.plan.tile_graph import TileGraph
from tuner.core.plan.words import EPILOGUE_STEP, WAIT_FIELDS, Words

Ints = npt.NDArray[np.int64]


def intern_waits(graph: TileGraph, tasks: Words, signals: Mapping[int, Signals], *, by_slice: bool) -> Words:
    """Writes each consumer's wait range into `tasks`; [waits, 5] the records."""
    records: list[WaitRecord] = []
    for op in graph.op_indices:
        operand = None if graph.is_in_band(op) else graph.edges_into(op)
        epilogue = [edge for edge in graph.epilogue_edges if edge.consumer == op and edge.waits is not Waits.NEVER]
        if operand is None and not epilogue:
            continue
        mine = np.flatnonzero(tasks[:, 0] == op)
        reads = _OperandReads(graph, operand, tasks[mine], signals, by_slice=by_slice) if operand else None
        keys = [reads.keys] if reads else []
        keys += [_epilogue_keys(edge, tasks[mine]) for edge in epilogue]
        needs = distinct_rows(np.concatenate(keys, axis=1))
        begin, end = np.zeros((2, len(needs.rows)), dtype=np.int32)
        shared: dict[tuple[WaitRecord, ...], tuple[int, int]] = {(): (0, 0)}
        for number, need in enumerate(needs.rows.tolist()):
            waits = reads.waits(*need[:3]) if reads else []
            waits += _epilogue_waits(epilogue, need[3 if reads else 0 :], signals, waits)
            if tuple(waits) not in shared:
                shared[tuple(waits)] = len(records), len(records) + len(waits)
                records.extend(waits)
            begin[number], end[number] = shared[tuple(waits)]
        tasks[mine, 3], tasks[mine, 4] = begin[needs.of], end[needs.of]
    return np.array(records, dtype=np.int32).reshape(-1, WAIT_FIELDS)


class _OperandReads:
    """What some tasks of an op read as A."""

    def __init__(
        self, graph: TileGraph, edge: Edges, tasks: Words, signals: Mapping[int, Signals], *, by_slice: bool
    ) -> None:
        self._needs, self._signals, self._by_slice = edge.needs(graph.steps_of(tasks)), signals[edge.producer], by_slice
        rows = tasks[:, 1]
        #: [tasks, 3] first tile row that it reads, one past the last, and the need.
        self.keys: Ints = np.stack((edge.first[rows], edge.last[rows], self._needs.of), axis=1)

    def waits(self, first: int, last: int, need: int) -> list[WaitRecord]:
        """The records of tasks with that key."""
        cols = self._needs.columns(need)
        steps = self._needs.first_reads[need, cols] if self._by_slice else None
        return self._signals.waits_for(first, last, cols, steps)


def _epilogue_keys(edge: EpilogueEdges, tasks: Words) -> Ints:
    """[tasks, 4] tile rows and tile columns that each waits for, half-open; all 0 for one that need not wait."""
    rows, (first_col, last_col) = tasks[:, 1], edge.columns(tasks[:, 2].astype(np.int64))
    keys = np.stack((edge.first[rows], edge.last[rows], first_col, last_col), axis=1)
    return np.where(edge.is_waited_for(tasks[:, 7].astype(np.int64))[:, None], keys, 0)


def _epilogue_waits(
    edges: list[EpilogueEdges], key: list[int], signals: Mapping[int, Signals], before: list[WaitRecord]
) -> list[WaitRecord]:
    """The records of tasks with that key, for what the waits before do not stand for."""
    covered = {signal for begin, end, *_ in before for signal in range(begin, end)}
    needed: dict[int, set[int]] = {}
    for number, edge in enumerate(edges):
        first, last, first_col, last_col = key[4 * number : 4 * number + 4]
        read = signals[edge.producer].post[first:last, first_col:last_col]
        needed.setdefault(edge.producer, set()).update(np.unique(read).tolist())
    return [
        record
        for producer, wanted in needed.items()
        for record in signals[producer].records(np.array(sorted(wanted - covered), dtype=np.int64), EPILOGUE_STEP)
    ]
