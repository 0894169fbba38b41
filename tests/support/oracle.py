"""A second judge for tiny plans: reads the words itself and walks every reachable state."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tuner.core.plan.tile_graph import TileGraph

#: Where a wait stands that is for the epilogue.
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
    #: Per CTA; for tickets the one list that all draw from.
    queues: list[list[int]]
    num_ctas: int
    is_static: bool
    #: Whether a CTA of its own is promised for each queue or task of a first wave.
    needs_all: bool
    #: Whether a part takes every so many-th k-step of its tile.
    strided: bool
    #: Slots in which parts meet.
    num_slots: int
    #: Tasks that are dealt, one to each CTA, before the rest is drawn; else 0.
    num_assigned: int
    #: Bit i: op i reads A in band.
    in_band: int


def read(words: list[int]) -> Table:
    """The tables of a plan's words."""
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


def faults(words: list[int], graph: TileGraph, resident: int | None = None) -> set[str]:
    """Of words, coverage, liveness, safety, residency: what the plan breaks where `resident` CTAs fit at once.

    Queues and first waves, with signals, are launched cooperatively, which a device refuses where not all CTAs fit.
    """
    table = read(words)
    if not _are_words_in_range(words, table):
        return {"words"}
    if not _is_covered(table, graph):
        return {"coverage"}
    if table.in_band & ~_able_in_band(graph):
        return {"residency"}
    found = _epoch_faults(table)
    steps = [_columns_by_step(task, graph, strided=table.strided) for task in table.tasks]
    for task, mine in zip(table.tasks, steps, strict=True):
        places = [wait[4] for wait in task.waits]
        reads_late = _reads_in_epilogue(task.op, graph) or table.in_band >> task.op & 1
        known = {*range(len(mine)), *([EPILOGUE] if reads_late else [])}
        if places != sorted(places) or not set(places) <= known:
            found.add("safety")  # the device looks for waits step by step, and would pass over one
    # From here on the epilogue is one step more, which comes last.
    placed = [_epilogue_placed(task, len(mine)) for task, mine in zip(table.tasks, steps, strict=True)]
    table = table._replace(tasks=placed)
    if resident is not None and table.needs_all and words[3] > 0 and table.num_ctas > resident:
        found.add("residency")
    producers = _producers(table, graph, steps)
    if table.num_assigned:
        return found | ({"liveness"} if wave_can_deadlock(table) else set()) | _explore_ahead(table, producers)
    for num_resident in [table.num_ctas] if table.is_static else range(1, table.num_ctas + 1):
        found |= _explore(table, producers, num_resident)
    return found | _explore_ahead(table, producers)


def _are_words_in_range(words: list[int], table: Table) -> bool:
    """Whether every count is at most 2^24, every k-step below 2^26, and nothing but a post below 0."""
    if not 0 <= table.in_band < 2**8:
        return False
    counts = [*words[2:5], *words[9:12], words[14]]
    counts += [count for task in table.tasks for count in (task.row, task.col, task.slot, task.post + 1)]
    waits = [words[at : at + 8] for at in range(words[8], words[8] + 8 * words[9], 8)]
    counts += [count for wait in waits for count in wait[:4]]
    steps = [words[12], *(wait[4] for wait in waits if wait[4] != EPILOGUE)]
    return all(0 <= count <= 2**24 for count in counts) and all(0 <= step < 2**26 for step in steps)


def _reads_in_epilogue(op: int, graph: TileGraph) -> bool:
    """Whether the op adds, or norms, what another op of the launch writes."""
    of_launch = {graph.workload.tile_ops[other].name for other in graph.op_indices}
    return bool(of_launch & {graph.workload.tile_ops[op].residual_source, graph.workload.tile_ops[op].norm})


def _able_in_band(graph: TileGraph) -> int:
    """Bit i: op i reads as A what another op of the launch writes, in a kernel that reads in band."""
    ops, of_launch = graph.workload.tile_ops, {graph.workload.tile_ops[other].name for other in graph.op_indices}
    able = (op for op in graph.op_indices if graph.tiling.in_band and ops[op].source in of_launch)
    return sum(2**op for op in able)


def _epilogue_placed(task: Task, num_steps: int) -> Task:
    waits = tuple((*wait[:4], num_steps if wait[4] == EPILOGUE else wait[4]) for wait in task.waits)
    return task._replace(waits=waits)


def _is_covered(table: Table, graph: TileGraph) -> bool:
    """Whether each tile is one task, or each of its parts is one, which have each of its k-steps once, post to the same
    signal and meet in a slot that is no other tile's."""
    tiles: dict[tuple[int, int, int], list[Task]] = {}
    taken: list[int] = []
    for task in table.tasks:
        tiles.setdefault((task.op, task.row, task.col), []).append(task)
    if set(tiles) != {(op, r, c) for op, (rows, cols) in graph.grids.items() for r in range(rows) for c in range(cols)}:
        return False
    for (op, _, _), parts in tiles.items():
        most = (graph.tiling.split_k or (1,) * len(graph.workload.tile_ops))[op]
        if [(part.part, part.num_parts) for part in parts] == [(0, 0)]:
            continue
        if not 1 < len(parts) <= most or {part.num_parts for part in parts} != {len(parts)}:
            return False
        if sorted(part.part for part in parts) != list(range(len(parts))) or not all(part.num_steps for part in parts):
            return False
        steps = sorted(step for part in parts for step in steps_of(part, graph, strided=table.strided))
        if steps != list(range(_num_steps(op, graph))):
            return False
        if len({(part.post, part.slot) for part in parts}) > 1:
            return False
        taken.append(parts[0].slot)
    return len(set(taken)) == len(taken) and set(taken) <= set(range(table.num_slots))


def _num_steps(op: int, graph: TileGraph) -> int:
    return len(range(0, graph.workload.tile_ops[op].k, graph.tiling.tiles[op].k))


def steps_of(task: Task, graph: TileGraph, *, strided: bool) -> list[int]:
    """The k-steps of its tile that a task has, in their order."""
    if not task.num_parts:
        return list(range(_num_steps(task.op, graph)))
    return [task.first_step + number * (task.num_parts if strided else 1) for number in range(task.num_steps)]


def posts_of(table: Table, done: frozenset[int] | set[int]) -> Counter[int]:
    """Signal -> posts once these tasks are done: one for each tile that is among them whole or with all its parts."""
    posts = Counter(table.tasks[task].post for task in done if not table.tasks[task].num_parts)
    parts = Counter(table.tasks[task][:3] for task in done if table.tasks[task].num_parts)
    posts.update({table.tasks[i][:3]: table.tasks[i].post for i in done if _is_whole(table.tasks[i], parts)}.values())
    return posts


def _is_whole(part: Task, parts: Counter[tuple[int, ...]]) -> bool:
    return 0 < part.num_parts <= parts[part[:3]]


def _epoch_faults(table: Table) -> set[str]:
    """What goes wrong in the second launch, whose signals start at what they got in the first."""
    posts = posts_of(table, set(range(len(table.tasks))))
    found = set()
    for task in table.tasks:
        for begin, end, _, per_launch, _ in task.waits:
            for signal in range(begin, end):
                if per_launch != posts[signal]:
                    found.add("liveness" if per_launch > posts[signal] else "safety")
    return found


def _columns_by_step(task: Task, graph: TileGraph, *, strided: bool) -> list[set[int]]:
    """[k-steps of the task] the columns of A that each reads."""
    depth, k = graph.tiling.tiles[task.op].k, graph.workload.tile_ops[task.op].k
    return [set(range(step * depth, min((step + 1) * depth, k))) for step in steps_of(task, graph, strided=strided)]


def _producers(table: Table, graph: TileGraph, steps: list[list[set[int]]]) -> list[list[set[int]]]:
    """[task] [step] the tasks that write, or help to write, an element of what it reads in that k-step; and behind
    these steps, of what it reads in its epilogue: the residual of its own tile, and whole rows of what it norms.
    Whichever part of a tile is the last reads that, so each part counts as one that does. What it reads in band says
    itself that it is there, in each k-step; so that the post says more than that, whole rows of it count as read in the
    epilogue."""
    ops, tiles = graph.workload.tile_ops, graph.tiling.tiles

    def columns_written(task: Task) -> set[int]:
        return set(range(task.col * tiles[task.op].n, (task.col + 1) * tiles[task.op].n))

    def in_band(task: Task) -> bool:
        return bool(table.in_band >> task.op & 1)

    def rows(task: Task) -> set[int]:
        height = tiles[task.op].m
        return set(range(task.row * height, min((task.row + 1) * height, ops[task.op].m)))

    def writers(task: Task, tensor: str, columns: set[int] | None) -> set[int]:
        return {
            index
            for index, other in enumerate(table.tasks)
            if ops[other.op].name == tensor
            and rows(other) & rows(task)
            and (columns is None or columns_written(other) & columns & set(range(ops[other.op].n)))
        }

    return [
        [
            *(set() if in_band(task) else writers(task, ops[task.op].source, columns) for columns in mine),
            writers(task, ops[task.op].residual_source, columns_written(task))
            | writers(task, ops[task.op].norm, None)
            | (writers(task, ops[task.op].source, None) if in_band(task) else set()),
        ]
        for task, mine in zip(table.tasks, steps, strict=True)
    ]


def _explore(table: Table, producers: list[list[set[int]]], num_resident: int) -> set[str]:
    """Every state that `num_resident` CTAs can reach: a state is what is held and which of its waits are over, what is
    left, and what is done."""
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
                # What is read before its next wait may be read at once: nothing else holds it up.
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
    """Every order in which tasks can complete, where nothing is known of who takes which, and how far ahead: a state is
    what is done."""
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
    """Whether CTAs that begin with a task each, and then draw as far ahead as they like, can all get stuck, by some
    choice of who draws what and when.

    What can complete does so at once: that only helps those who wait, and a CTA that is left with less in its hand may
    draw no less than before. So a state is how many are drawn, and what each CTA holds.
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
    """The hands when all has completed that can; each works its tasks off in the order drawn."""
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
