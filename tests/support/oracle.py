"""A second judge for tiny plans: it decodes the words itself and walks every reachable state."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

from tuner.core.plan.graph.boxes import STEP, Box
from tuner.core.plan.graph.tile_graph import TaskGraph, TileGraph

#: The position of a wait for the epilogue.
EPILOGUE = 2**26


class Task(NamedTuple):
    op: int
    row: int
    col: int
    waits: tuple[tuple[int, int, int, int, int], ...]
    post: int
    part: int
    num_parts: int
    slot: int
    first_step: int
    num_steps: int


class Table(NamedTuple):
    tasks: list[Task]
    #: The tasks of each CTA or, for tickets, the one list from which all draw.
    queues: list[list[int]]
    num_ctas: int
    is_static: bool
    #: Whether each queue, or task of a first wave, is guaranteed a separate CTA.
    needs_all: bool
    #: Whether a part takes every num_parts-th k-step of its tile.
    strided: bool
    #: Slots in which parts are added.
    num_slots: int
    #: Assigned tasks, one per CTA, before the rest is drawn; else 0.
    num_assigned: int
    #: Bit i: op i reads A in band.
    in_band: int


def read(words: list[int]) -> Table:
    """Decodes the tables of a plan's words."""
    num_tasks, _, num_ctas, assignment, queue_at, task_at, wait_at, _ = words[2:10]
    tasks = []
    for at in range(task_at, task_at + 8 * num_tasks, 8):
        who, row, col, begin, end, post, steps, slot = words[at : at + 8]
        num_parts, part, op = who % 2**32 // 2**24, who // 2**16 % 2**8, who % 2**16
        num_steps, first_step = divmod(steps % 2**32, 2**16)
        waits = []
        for w in range(begin, end):
            signal_begin, signal_end, threshold, per_launch, step, *_ = words[wait_at + 8 * w : wait_at + 8 * w + 8]
            waits.append((signal_begin, signal_end, threshold, per_launch, step))
        tasks.append(Task(op, row, col, tuple(waits), post, part, num_parts, slot, first_step, num_steps))
    if assignment == 0:
        bounds = words[queue_at : queue_at + num_ctas + 1]
        queues = [list(range(bounds[i], bounds[i + 1])) for i in range(num_ctas)]
    else:
        queues = [list(range(num_tasks))]
    return Table(
        tasks,
        queues,
        num_ctas,
        assignment == 0,
        assignment != 1,
        words[13] == 1,
        words[14],
        num_ctas * (assignment == 3),
        words[15],
    )


def faults(words: list[int], graph: TaskGraph, resident: int | None = None) -> set[str]:
    """The violations of a plan if `resident` CTAs fit at once, among violations of words, coverage, liveness, safety,
    residency.

    Queues and first waves with signals are launched cooperatively, which a device refuses if not all CTAs fit.
    """
    table = read(words)
    if not _are_words_in_range(words, table):
        return {"words"}
    if not _is_covered(table, graph):
        return {"coverage"}
    if table.in_band & ~_able_in_band(graph):
        return {"residency"}
    found = _epoch_faults(table)
    graph = graph.with_in_band(table.in_band)
    for task in table.tasks:
        places = [wait[4] for wait in task.waits]
        steps = range(len(steps_of(task, graph, strided=table.strided)))
        known = {*steps, *([EPILOGUE] if _reads_late(task.op, graph) else [])}
        if places != sorted(places) or not set(places) <= known:
            found.add("safety")  # the device checks waits step by step, and would skip it
    # From here on, the epilogue is one more step, which comes last.
    placed = [_epilogue_placed(task, len(steps_of(task, graph, strided=table.strided))) for task in table.tasks]
    table = table._replace(tasks=placed)
    if resident is not None and table.needs_all and words[3] > 0 and table.num_ctas > resident:
        found.add("residency")
    producers = _producers(table, graph)
    if table.num_assigned:
        return found | ({"liveness"} if wave_can_deadlock(table) else set()) | _explore_ahead(table, producers)
    for num_resident in [table.num_ctas] if table.is_static else range(1, table.num_ctas + 1):
        found |= _explore(table, producers, num_resident)
    return found | _explore_ahead(table, producers)


def _are_words_in_range(words: list[int], table: Table) -> bool:
    """Whether every count is at most 2^24, every k-step below 2^26, and nothing except a post is negative."""
    if not 0 <= table.in_band < 2**8:
        return False
    counts = [*words[2:5], *words[9:12], words[14]]
    counts += [count for task in table.tasks for count in (task.row, task.col, task.slot, task.post + 1)]
    waits = [words[at : at + 8] for at in range(words[8], words[8] + 8 * words[9], 8)]
    counts += [count for wait in waits for count in wait[:4]]
    steps = [words[12], *(wait[4] for wait in waits if wait[4] != EPILOGUE)]
    return all(0 <= count <= 2**24 for count in counts) and all(0 <= step < 2**26 for step in steps)


def _written(graph: TaskGraph) -> set[str]:
    """The tensors that ops of the launch write."""
    return {box.tensor for space in graph.spaces.values() for box in space.writes}


def _reads_late(op: int, graph: TaskGraph) -> bool:
    """Whether the op reads an output of the launch late."""
    return any(read.is_late and read.box.tensor in _written(graph) for read in graph.spaces[op].reads)


def _able_in_band(graph: TaskGraph) -> int:
    """Bit i: op i reads an output of another op of the launch in its steps, in a kernel that reads in band."""
    able = (
        op
        for op, space in graph.spaces.items()
        if isinstance(graph, TileGraph)
        and graph.tiling.in_band
        and any(not read.is_late and read.box.tensor in _written(graph) for read in space.reads)
    )
    return sum(2**op for op in able)


def _epilogue_placed(task: Task, num_steps: int) -> Task:
    waits = tuple((*wait[:4], num_steps if wait[4] == EPILOGUE else wait[4]) for wait in task.waits)
    return task._replace(waits=waits)


def _is_covered(table: Table, graph: TaskGraph) -> bool:
    """Whether each tile is one task, or its parts together have each of its k-steps once, post to the same signal, and
    share a slot that no other tile uses."""
    tiles: dict[tuple[int, int, int], list[Task]] = {}
    taken: list[int] = []
    for task in table.tasks:
        tiles.setdefault((task.op, task.row, task.col), []).append(task)
    if set(tiles) != {(op, r, c) for op, (rows, cols) in graph.grids.items() for r in range(rows) for c in range(cols)}:
        return False
    for (op, _, _), parts in tiles.items():
        if [(part.part, part.num_parts) for part in parts] == [(0, 0)]:
            continue
        if not 1 < len(parts) <= graph.spaces[op].num_parts or {part.num_parts for part in parts} != {len(parts)}:
            return False
        if sorted(part.part for part in parts) != list(range(len(parts))) or not all(part.num_steps for part in parts):
            return False
        steps = sorted(step for part in parts for step in steps_of(part, graph, strided=table.strided))
        if steps != list(range(graph.spaces[op].num_steps)):
            return False
        if len({(part.post, part.slot) for part in parts}) > 1:
            return False
        taken.append(parts[0].slot)
    return len(set(taken)) == len(taken) and set(taken) <= set(range(table.num_slots))


def steps_of(task: Task, graph: TaskGraph, *, strided: bool) -> list[int]:
    """The steps of its tile that a task computes, in order."""
    if not task.num_parts:
        return list(range(graph.spaces[task.op].num_steps))
    return [task.first_step + number * (task.num_parts if strided else 1) for number in range(task.num_steps)]


def posts_of(table: Table, done: frozenset[int] | set[int]) -> Counter[int]:
    """Signal -> posts after these tasks: one for each tile whose task, or all of whose parts, are among them."""
    posts = Counter(table.tasks[task].post for task in done if not table.tasks[task].num_parts)
    parts = Counter(table.tasks[task][:3] for task in done if table.tasks[task].num_parts)
    posts.update({table.tasks[i][:3]: table.tasks[i].post for i in done if _is_whole(table.tasks[i], parts)}.values())
    return posts


def _is_whole(part: Task, parts: Counter[tuple[int, ...]]) -> bool:
    return 0 < part.num_parts <= parts[part[:3]]


def _epoch_faults(table: Table) -> set[str]:
    """The violations in the second launch, whose signals start at the values after the first."""
    posts = posts_of(table, set(range(len(table.tasks))))
    found = set()
    for task in table.tasks:
        for begin, end, _, per_launch, _ in task.waits:
            for signal in range(begin, end):
                if per_launch != posts[signal]:
                    found.add("liveness" if per_launch > posts[signal] else "safety")
    return found


def _producers(table: Table, graph: TaskGraph) -> list[list[set[int]]]:
    """[task] [step]: the tasks that write, or help to write, an element that it reads in this step; after the steps,
    those of its late reads. Any part of a tile may be the last, so each part is treated as a late reader. A box without
    steps is read in the first one. Data read in band signals its own arrival."""
    tiles = [graph.spaces[task.op].coordinates(task.row, task.col) for task in table.tasks]
    written = [
        [(box.tensor, _sides(box, tile, 0)) for box in graph.spaces[task.op].writes]
        for task, tile in zip(table.tasks, tiles, strict=True)
    ]

    def writers(box: Box, tile: tuple[int, ...], step: int, op: int) -> set[int]:
        mine = _sides(box, tile, step)
        own = {  # before a tile changes anything in place, it reads it
            index
            for index, task in enumerate(table.tasks)
            if (task.op, tiles[index]) == (op, tile) and (box.tensor, mine) in written[index]
        }
        return {
            index
            for index, boxes in enumerate(written)
            if any(tensor == box.tensor and _meet(sides, mine) for tensor, sides in boxes)
        } - own

    found = []
    for task, tile in zip(table.tasks, tiles, strict=True):
        reads, steps = graph.spaces[task.op].reads, steps_of(task, graph, strided=table.strided)
        by_step = [set[int]() for _ in (*steps, EPILOGUE)]
        for read in reads:
            if read.is_late:
                by_step[-1] |= writers(read.box, tile, 0, task.op)
                continue
            goes_by_step = any(STEP in extent.axes for extent in read.box.extents)
            for number, step in enumerate(steps) if not read.in_band else ():
                by_step[number if goes_by_step else 0] |= writers(read.box, tile, step, task.op)
        found.append(by_step)
    return found


@cache
def _sides(box: Box, tile: tuple[int, ...], step: int) -> tuple[tuple[int, int], ...]:
    return tuple((side.start, side.stop) for side in box.at(tile, step))


def _meet(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
    sides = zip(one, other, strict=True)
    return all(max(begin, first) < min(end, last) for (begin, end), (first, last) in sides)


def _explore(table: Table, producers: list[list[set[int]]], num_resident: int) -> set[str]:
    """Explores every state that `num_resident` CTAs can reach: the tasks held, which of their waits have passed, what
    remains, and what is done."""
    found: set[str] = set()
    lanes = len(table.queues)
    start = ((None,) * num_resident, (0,) * lanes, frozenset[int]())
    seen, todo = {start}, [start]
    while todo:
        held, heads, done = todo.pop()
        posts = posts_of(table, done)
        moved = False
        for cta in range(num_resident):
            lane = cta if table.is_static else 0
            if held[cta] is None:
                if heads[lane] == len(table.queues[lane]):
                    continue
                taken = table.queues[lane][heads[lane]]
                after = (_put(held, cta, (taken, 0)), _put(heads, lane, heads[lane] + 1), done)
            else:
                task, num_over = held[cta]
                waits = table.tasks[task].waits
                # Data that is read before the next wait may be read immediately, since nothing else delays the read.
                until = waits[num_over][4] if num_over < len(waits) else len(producers[task])
                if any(wrote - done for wrote in producers[task][: max(until, 0)]):
                    found.add("safety")
                if num_over == len(waits):
                    after = (_put(held, cta, None), heads, done | {task})
                else:
                    begin, end, needed, _, _ = waits[num_over]
                    if any(posts[signal] < needed for signal in range(begin, end)):
                        continue
                    after = (_put(held, cta, (task, num_over + 1)), heads, done)
            moved = True
            if after not in seen:
                seen.add(after)
                todo.append(after)
        if not moved and len(done) < len(table.tasks):
            found.add("liveness")
    return found


def _explore_ahead(table: Table, producers: list[list[set[int]]]) -> set[str]:
    """Every order in which tasks can complete, if it is unknown which CTA takes which task and how far ahead; a state
    is the set of completed tasks."""
    found: set[str] = set()
    seen, todo = {frozenset[int]()}, [frozenset[int]()]
    while todo:
        done = todo.pop()
        posts = posts_of(table, done)
        for task in set(range(len(table.tasks))) - done:
            waits = table.tasks[task].waits
            lacking = [step for a, b, needed, _, step in waits if any(posts[s] < needed for s in range(a, b))]
            if any(wrote - done for wrote in producers[task][: min(lacking, default=len(producers[task]))]):
                found.add("safety")
            if lacking:
                continue
            if done | {task} not in seen:
                seen.add(done | {task})
                todo.append(done | {task})
    return found


def wave_can_deadlock(table: Table) -> bool:
    """Whether CTAs that start with one task each, and then draw arbitrarily far ahead, can all get stuck for some
    choice of draws.

    Whatever can complete does so at once: this only helps waiting CTAs, and a CTA that holds fewer tasks may draw at
    least as many as before. So a state is the number of drawn tasks and the tasks that each CTA holds.
    """
    (tasks,), num_first = table.queues, table.num_assigned
    start = (num_first, _completed(table, set(tasks[:num_first]), tuple((task,) for task in tasks[:num_first])))
    seen, todo = {start}, [start]
    while todo:
        drawn, hands = todo.pop()
        if drawn == len(tasks):
            if any(hands):
                return True
            continue
        for cta, hand in enumerate(hands):
            taken = _put(hands, cta, (*hand, tasks[drawn]))
            state = (drawn + 1, _completed(table, set(tasks[: drawn + 1]), taken))
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return False


def _completed(table: Table, drawn: set[int], hands: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The hands after everything that can complete has completed; each CTA works through its tasks in the order
    drawn."""
    while True:
        posts = posts_of(table, drawn - {task for hand in hands for task in hand})
        over = [
            bool(hand)
            and all(posts[s] >= needed for a, b, needed, *_ in table.tasks[hand[0]].waits for s in range(a, b))
            for hand in hands
        ]
        if not any(over):
            return hands
        hands = tuple(hand[1:] if is_over else hand for hand, is_over in zip(hands, over, strict=True))


def _put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])
