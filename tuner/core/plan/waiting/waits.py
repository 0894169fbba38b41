"""Waits: the records with which each task waits for its inputs from ops of its launch, or from its own op.

Waits for inputs of a task's steps come before these steps. Waits for late inputs come after the last step, unless other
waits imply them: those for inputs of its steps, or those of the tiles that it reads (`cover.Waits`). In-band reads need
no wait. Tasks with the same needs share their records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from tuner.core.plan.graph.boxes import Ints
from tuner.core.plan.graph.cover import Waits
from tuner.core.plan.graph.edges import Edge
from tuner.core.plan.graph.needs import Needs
from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.table.distinct import distinct_rows
from tuner.core.plan.table.words import EPILOGUE_STEP, WAIT_FIELDS, Words
from tuner.core.plan.waiting.signals import Signals, WaitRecord


def intern_waits(graph: TaskGraph, tasks: Words, signals: Mapping[int, Signals], *, by_slice: bool) -> Words:
    """Writes each consumer's wait range into `tasks`; returns the records, [waits, 5]."""
    records: list[WaitRecord] = []
    for op in graph.op_indices:
        edges = [edge for edge in graph.early_edges if edge.consumer == op]
        num_early = len(edges)
        edges += [edge for edge in graph.late_edges if edge.consumer == op and graph.waits_for(edge) is not Waits.NEVER]
        if not edges:
            continue
        mine = np.flatnonzero(tasks[:, 0] == op)
        places, steps = graph.spaces[op].places(tasks[mine]), graph.steps_of(tasks[mine])
        needs = [edge.needs(places, steps) for edge in edges]
        for place in range(num_early, len(edges)):
            if graph.waits_for(edges[place]) is Waits.PARTS:
                needs[place] = _of_parts(needs[place], tasks[mine])
        lists = distinct_rows(np.stack([need.of for need in needs]).T)
        begin, end = np.zeros((2, len(lists.rows)), dtype=np.int32)
        shared: dict[tuple[WaitRecord, ...], tuple[int, int]] = {(): (0, 0)}
        posts = [signals[edge.producer].post.ravel() for edge in edges]
        early = list(zip(edges, needs, posts, lists.rows.T, strict=True))[:num_early]
        all_waits = _early_waits(early, signals, len(lists.rows), by_slice=by_slice)
        for number, (numbers, waits) in enumerate(zip(lists.rows.tolist(), all_waits, strict=True)):
            read = list(zip(edges, needs, posts, numbers, strict=True))
            waits += _late_waits(read[num_early:], signals, waits)
            if tuple(waits) not in shared:
                shared[tuple(waits)] = len(records), len(records) + len(waits)
                records.extend(waits)
            begin[number], end[number] = shared[tuple(waits)]
        tasks[mine, 3], tasks[mine, 4] = begin[lists.of], end[lists.of]
    return np.array(records, dtype=np.int32).reshape(-1, WAIT_FIELDS)


#: An edge, what some tasks read of its producer, the signals of the producer's tiles, and the number of a list.
_Reads = tuple[Edge, Needs, Ints, int]


def _of_parts(needs: Needs, tasks: Words) -> Needs:
    """The same needs, except that whole tiles have none: theirs is an empty list, which comes first."""
    begin = np.concatenate(([0], needs.begin))
    return Needs(of=np.where(tasks[:, 7] > 0, needs.of + 1, 0), begin=begin, tiles=needs.tiles, steps=needs.steps)


def _early_waits(
    reads: Sequence[tuple[Edge, Needs, Ints, Ints]], signals: Mapping[int, Signals], num_lists: int, *, by_slice: bool
) -> list[list[WaitRecord]]:
    """For each of several lists, the records for inputs of the steps, in the order of the steps; `reads` has, for each
    edge, the number of each list. All lists are computed at once, since a launch may have thousands."""
    found = list[Ints]()
    for edge, needs, post, numbers in reads:
        entries, of = needs.gathered(numbers)
        steps = needs.steps[entries] if by_slice else None
        found.append(signals[edge.producer].waits_of_lists(of, post[needs.tiles[entries]], steps))
    table = np.concatenate(found) if found else np.zeros((0, 1 + WAIT_FIELDS), dtype=np.int64)
    if len(reads) > 1:
        table = table[np.lexsort((table[:, 5], table[:, 0]))]
    begin = np.searchsorted(table[:, 0], np.arange(num_lists + 1)).tolist()
    records = list(map(tuple, table[:, 1:].tolist()))
    return [records[first:last] for first, last in pairwise(begin)]


def _late_waits(
    reads: Sequence[_Reads], signals: Mapping[int, Signals], before: Sequence[WaitRecord]
) -> list[WaitRecord]:
    """The records for late inputs that earlier waits do not imply."""
    covered = {signal for begin, end, *_ in before for signal in range(begin, end)}
    needed: dict[int, set[int]] = {}
    for edge, needs, post, number in reads:
        needed.setdefault(edge.producer, set()).update(np.unique(post[needs.tiles[needs.entries(number)]]).tolist())
    return [
        record
        for producer, wanted in needed.items()
        for record in signals[producer].records(np.array(sorted(wanted - covered), dtype=np.int64), EPILOGUE_STEP)
    ]
