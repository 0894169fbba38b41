"""Safety: no task reads before the tasks whose output it reads have posted. Half of `tuner.core.proof.verify`.

The fast path covers a consumer that waits for the producer's signal before the first k-step that reads the producer's
output. The threshold must count all posts that the signal gets. That step is then reached only once the producer has
posted. Where that does not hold, the question is settled exactly: freeze the producer (it starts, and never completes)
and see whether the consumer can still reach that step. `symbolic_run` argues why one run answers that. A run in which
the consumer reads before the producer posts is, up to there, a run with the producer frozen. And every run with the
producer frozen is the beginning of a run in which it is merely slow. A tile that is split is there once its last part
is: each of its parts is frozen in turn.

What a task reads in its epilogue (a residual, the norm of its rows) it may also read behind waits of others. A wait
that counts all posts of a signal stands for the tiles that post there; each of these waited in turn; and so on. Release
and acquire are cumulative, so what is done before is also visible. `tuner.core.proof.implied` follows that.

Tasks of one CTA. An engine may take the next task, of a queue or by drawing, before the present one is done, and load
its operands; with two warpgroups in turns even finish it. How far ahead it gets is its own business, so that one CTA
runs both tasks orders nothing here: each task gets a CTA of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tuner.core.plan.distinct import distinct_rows
from tuner.core.plan.edges import Edges, EpilogueEdges, Needs
from tuner.core.plan.tile_graph import TileGraph
from tuner.core.plan.words import EPILOGUE_STEP, Plan
from tuner.core.proof.implied import Implied, counted_before
from tuner.core.proof.liveness import post_totals, range_reduce, task_name
from tuner.core.proof.symbolic_run import Protocol
from tuner.errors import SafetyError

Ints = npt.NDArray[np.int64]


def check_safety(plan: Plan, graph: TileGraph) -> None:
    """Every edge of the tile graph is kept in every interleaving; the plan covers the graph and is live.

    Raises:
        SafetyError: the witness names the consumer and the k-step that reads, the producer and the signal that it
            fails to wait for by then; or a wait that stands where the device would not find it.
    """
    check_steps(plan, graph)
    readers: dict[int, list[tuple[int, int]]] = {}
    totals = post_totals(plan)
    for edge in graph.edges:
        for producer, step, consumers in _uncovered(plan, graph, edge, totals):
            readers.setdefault(producer, []).extend((consumer, step) for consumer in consumers)
    if graph.epilogue_edges:
        implied = Implied(plan, totals)
        for epilogue_edge in graph.epilogue_edges:
            for producer, consumers in _uncovered_in_epilogue(plan, graph, epilogue_edge, implied):
                readers.setdefault(producer, []).extend((consumer, EPILOGUE_STEP) for consumer in consumers)
    if not readers:
        return
    protocol = Protocol(plan)
    for producer, reads in readers.items():
        progress = protocol.run_apart(frozen=producer)
        racing = next((read for read in reads if progress.reaches(*read)), None)
        if racing is not None:
            reader, step = racing
            signal = int(plan.tasks[producer, 5])
            posts = f"posts to signal {signal}" if signal >= 0 else "posts nothing"
            raise SafetyError(
                "a read can precede its write",
                f"{task_name(plan, graph, reader)} can {_what(step)} before {task_name(plan, graph, producer)}"
                f" is done, which {posts}; the reader's waits {_waits_text(plan, reader)} do not count that post by "
                "then",
            )


def _what(step: int) -> str:
    return "come to its epilogue" if step == EPILOGUE_STEP else f"load its k-step {step}"


def check_steps(plan: Plan, graph: TileGraph) -> None:
    """The waits of each task stand before k-steps that it has, in the order of these, or then before an epilogue that
    reads what another op of the launch wrote. Elsewhere behind the last k-step a wait protects no read, and engines
    differ in what it holds up: this task, the next one, or nothing.

    Raises:
        SafetyError: names the task, and how its waits stand.
    """
    if not len(plan.waits):
        return
    step = plan.waits[:, 4].astype(np.int64)
    begin, end = plan.tasks[:, 3].astype(np.int64), plan.tasks[:, 4].astype(np.int64)
    falls = np.concatenate(([0, 0], np.cumsum(np.diff(step) < 0)))  # [w] falls between neighbours up to wait w - 1
    unordered = np.flatnonzero((end > begin) & (falls[end] > falls[np.minimum(begin + 1, end)]))
    waiting = np.flatnonzero(end > begin)
    num_steps = graph.steps_of(plan.tasks)[:, 2]
    reads_late = np.isin(plan.tasks[waiting, 0], [edge.consumer for edge in graph.epilogue_edges])
    late = np.concatenate(([0], np.cumsum(step == EPILOGUE_STEP)))
    num_late = late[end[waiting]] - late[begin[waiting]]  # the last of them, where they are in order
    last = end[waiting] - 1 - num_late
    is_beyond = (last >= begin[waiting]) & (step[last] >= num_steps[waiting])
    beyond = waiting[is_beyond | ((num_late > 0) & ~reads_late)]
    for wrong, problem in (
        (unordered, "are not in the order of their k-steps"),
        (beyond, "stand at a k-step that it lacks"),
    ):
        if wrong.size:
            task = int(wrong[0])
            who = f"{task_name(plan, graph, task)}, of {num_steps[task]} k-steps"
            raise SafetyError("a wait is out of its place", f"{who}: its waits {_waits_text(plan, task)} {problem}")


def _waits_text(plan: Plan, task: int) -> str:
    records = plan.waits[plan.tasks[task, 3] : plan.tasks[task, 4]].tolist()
    texts = [f"(signals {begin}..{end - 1} >= {needed}{_place(step)})" for begin, end, needed, _, step in records]
    return ", ".join(texts) or "(none)"


def _place(step: int) -> str:
    if step == EPILOGUE_STEP:
        return " before the epilogue"
    return f" before step {step}" if step else ""


def _uncovered(plan: Plan, graph: TileGraph, edge: Edges, totals: Ints) -> Iterator[tuple[int, int, list[int]]]:
    """Producer tasks, the k-step that reads them first, and the consumers that come to it without a wait that counts
    all posts of the producer's signal."""
    grid = graph.grids[edge.producer]
    by_tile, first_of, signal_at = _tiles_of(plan, edge.producer, grid)
    consumers = np.flatnonzero(plan.tasks[:, 0] == edge.consumer)
    words = plan.tasks[consumers].astype(np.int64)
    needs = edge.needs(graph.steps_of(plan.tasks[consumers]))
    keys = np.column_stack((words[:, (1, 3, 4)], needs.of))
    distinct = distinct_rows(keys)
    groups, group_of = distinct.rows, distinct.of
    loose = np.flatnonzero(~_covered_by_one_wait(plan, edge, needs, groups, signal_at, totals))
    for group in loose.tolist():
        row, wait_begin, wait_end, need = groups[group].tolist()
        before = counted_before(plan, wait_begin, wait_end, totals)
        first_row, cols = int(edge.first[row]), needs.columns(need)
        read_in = needs.first_reads[need, cols]
        late = before[signal_at[first_row : edge.last[row], cols]] > read_in
        if not late.any():
            continue
        members = consumers[group_of == group].tolist()
        for below, right in zip(*(axis.tolist() for axis in np.nonzero(late)), strict=True):
            tile = (first_row + below) * grid[1] + int(cols[right])
            for producer in by_tile[first_of[tile] : first_of[tile + 1]].tolist():
                yield producer, int(read_in[right]), members


def _tiles_of(plan: Plan, op: int, grid: tuple[int, int]) -> tuple[Ints, Ints, Ints]:
    """The op's tasks, tile by tile; where each tile's begin among them; and [tile rows, tile columns] the signal that
    each tile posts to."""
    mine = np.flatnonzero(plan.tasks[:, 0] == op)
    tile_of = np.ravel_multi_index((plan.tasks[mine, 1], plan.tasks[mine, 2]), grid)
    by_tile = mine[np.argsort(tile_of, kind="stable")]
    first_of = np.concatenate(([0], np.cumsum(np.bincount(tile_of, minlength=grid[0] * grid[1]))))
    return by_tile, first_of, plan.tasks[by_tile[first_of[:-1]], 5].astype(np.int64).reshape(grid)


def _uncovered_in_epilogue(
    plan: Plan, graph: TileGraph, edge: EpilogueEdges, implied: Implied
) -> Iterator[tuple[int, list[int]]]:
    """Producer tasks, and the consumers that come to their epilogue without a wait that stands for them, be it their
    own or one of a task that they wait for."""
    grid = graph.grids[edge.producer]
    by_tile, first_of, signal_at = _tiles_of(plan, edge.producer, grid)
    consumers = np.flatnonzero(plan.tasks[:, 0] == edge.consumer)
    rows, lists = plan.tasks[consumers, 1].astype(np.int64), implied.list_of[consumers]
    num_lists = int(lists.max(initial=0)) + 1
    keys, key_of = np.unique(rows * num_lists + lists, return_inverse=True)
    is_loose = np.array(
        [not _has_whole_rows(edge, implied, signal_at, *divmod(key, num_lists)) for key in keys.tolist()]
    )
    loose = np.flatnonzero(is_loose[key_of.reshape(-1)])
    first_col, last_col = edge.columns(plan.tasks[consumers[loose], 2].astype(np.int64))
    wanted = np.column_stack((rows[loose], lists[loose], first_col, last_col))
    distinct = distinct_rows(wanted)
    for group, (row, number, begin, end) in enumerate(distinct.rows.tolist()):
        first_row = int(edge.first[row])
        missing = ~implied.by_waits(number, signal_at[first_row : edge.last[row], begin:end])
        if not missing.any():
            continue
        members = consumers[loose[distinct.of == group]].tolist()
        for below, right in zip(*(axis.tolist() for axis in np.nonzero(missing)), strict=True):
            tile = (first_row + below) * grid[1] + begin + right
            for producer in by_tile[first_of[tile] : first_of[tile + 1]].tolist():
                yield producer, members


def _has_whole_rows(edge: EpilogueEdges, implied: Implied, signal_at: Ints, row: int, number: int) -> bool:
    """Whether tasks of that tile row with that list of waits have all that the producer writes of these rows."""
    return bool(implied.by_waits(number, signal_at[int(edge.first[row]) : int(edge.last[row])]).all())


def _covered_by_one_wait(
    plan: Plan, edge: Edges, needs: Needs, groups: Ints, signal_at: Ints, totals: Ints
) -> npt.NDArray[np.bool_]:
    """[groups of (consumer tile row, wait_begin, wait_end, need)] whether the first wait covers all that is read, from
    the first k-step on."""
    covered = np.zeros(len(groups), dtype=np.bool_)
    if not totals.size:
        return covered
    for need in range(len(needs.first_reads)):
        waiting = np.flatnonzero((groups[:, 2] > groups[:, 1]) & (groups[:, 3] == need))
        if not waiting.size:
            continue
        signals = signal_at[:, needs.columns(need)]
        lowest, highest, most = signals.min(axis=1), signals.max(axis=1), totals[signals].max(axis=1)
        first, last = edge.first[groups[waiting, 0]], edge.last[groups[waiting, 0]]
        wait = plan.waits[groups[waiting, 1]].astype(np.int64)
        covered[waiting] = (
            (wait[:, 4] == 0)
            & (wait[:, 0] <= range_reduce(np.minimum, lowest, first, last))
            & (range_reduce(np.minimum, lowest, first, last) >= 0)
            & (wait[:, 1] > range_reduce(np.maximum, highest, first, last))
            & (wait[:, 2] >= range_reduce(np.maximum, most, first, last))
        )
    return covered
