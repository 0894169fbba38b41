"""The schedule as a picture: the tiles of each op in starting order, and which tiles wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner.core.plan.table.header import STATIC
from tuner.core.plan.table.words import Plan
from tuner.core.proof.verify import VerifiedPlan

Ints = npt.NDArray[np.int64]

WIDTH = 960.0
_LEFT, _TOP, _HEAD, _GAP = 8.0, 4.0, 22.0, 20.0
_MAX_CELL, _MIN_HEIGHT, _MAX_HEIGHT = 34.0, 12.0, 300.0
#: Above this number of tiles per side, or per op, adjacent tiles are drawn as one cell, to save time in the browser.
MAX_SIDE, MAX_CELLS = 64, 1024
#: Minimum size of a cell with a number.
_NUMBER_FROM = 20.0
#: Maximum number of a task's dependencies that are drawn as lines; the rest are only marked.
_MAX_LINES = 24


@dataclass(frozen=True, kw_only=True)
class TileCell:
    """A tile, or several tiles drawn as one."""

    x: float
    y: float
    width: float
    height: float
    #: 0.0 for the first, 1.0 for the last.
    rank: float
    #: Its position in the order; empty if there is no space.
    number: str
    #: ``waiter``, ``awaited`` or nothing.
    role: str
    title: str


@dataclass(frozen=True, kw_only=True)
class OpPicture:
    """One op's tiles."""

    name: str
    y: float
    cells: list[TileCell]
    #: Points of the path; empty if it would hide the tiles.
    path: str
    note: str


@dataclass(frozen=True, kw_only=True)
class SchedulePicture:
    """All ops of all launches."""

    width: float
    height: float
    ops: list[OpPicture]
    #: From the awaited tile to the waiting one.
    lines: list[tuple[float, float, float, float]]
    sentence: str


def begin_ranks(plan: Plan) -> Ints:
    """[task] each task's position in starting order: round-robin over the queues, or ticket order."""
    if plan.assignment != STATIC:
        return np.arange(plan.num_tasks, dtype=np.int64)
    queue = np.repeat(np.arange(plan.num_ctas), np.diff(plan.queues))
    turn = np.arange(plan.num_tasks) - plan.queues[queue]
    ranks = np.empty(plan.num_tasks, dtype=np.int64)
    ranks[np.lexsort((queue, turn))] = np.arange(plan.num_tasks)
    return ranks


def draw_schedule(plans: Sequence[VerifiedPlan]) -> SchedulePicture | None:
    """The picture of a candidate's launches; None if it has none."""
    if not plans:
        return None
    waiter, awaited, sentence = _example(plans)
    ops, centres, top = list[OpPicture](), dict[tuple[int, int, int], tuple[float, float]](), _TOP
    first = 0
    for launch, plan in enumerate(plans):
        ranks = begin_ranks(plan.plan) + first
        total = max(1, sum(one.plan.num_tasks for one in plans) - 1)
        for op, (num_rows, num_cols) in plan.graph.grids.items():
            picture, found = _op(plan, op, (num_rows, num_cols), ranks, total, top, (waiter, awaited, launch))
            ops.append(picture)
            centres.update(found)
            height = max((cell.y + cell.height for cell in picture.cells), default=top)
            top = height + _GAP
        first += plan.plan.num_tasks
    lines = []
    if waiter in centres:
        for key in sorted(awaited)[:_MAX_LINES]:
            if key in centres:
                lines.append((*centres[key], *centres[waiter]))
    return SchedulePicture(width=WIDTH, height=top, ops=ops, lines=lines, sentence=sentence)


Key = tuple[int, int, int]


def _op(
    plan: VerifiedPlan,
    op: int,
    grid: tuple[int, int],
    ranks: Ints,
    total: int,
    top: float,
    example: tuple[Key | None, set[Key], int],
) -> tuple[OpPicture, dict[Key, tuple[float, float]]]:
    """The grid of one op, and the positions of the example's tiles by (op, row, column)."""
    waiter, awaited, _ = example
    num_rows, num_cols = grid
    tasks = plan.plan.tasks
    mine = np.flatnonzero(tasks[:, 0] == op)
    first = np.full(grid, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, (tasks[mine, 1], tasks[mine, 2]), ranks[mine])
    down, right = _coarseness(num_rows, num_cols)
    shown_rows, shown_cols = -(-num_rows // down), -(-num_cols // right)
    width = min(_MAX_CELL, (WIDTH - 2 * _LEFT) / shown_cols)
    height = max(_MIN_HEIGHT, min(width, _MAX_HEIGHT / shown_rows)) if shown_rows < 16 else _MAX_HEIGHT / shown_rows
    roles = {**dict.fromkeys(awaited, "awaited"), **({waiter: "waiter"} if waiter else {})}
    marked = {(key[1] // down, key[2] // right): role for key, role in roles.items() if key[0] == op}
    cells = list[TileCell]()
    for row in range(shown_rows):
        for col in range(shown_cols):
            block = first[row * down : (row + 1) * down, col * right : (col + 1) * right]
            x, y = _LEFT + col * width, top + _HEAD + row * height
            is_one = block.size == 1
            rank = float(block.mean())
            has_room = is_one and min(width, height * 1.4) >= _NUMBER_FROM
            cells.append(
                TileCell(
                    x=round(x, 2),
                    y=round(y, 2),
                    width=round(max(0.6, width - (1 if width > 4 else 0.2)), 2),
                    height=round(max(0.6, height - (1 if height > 4 else 0.2)), 2),
                    rank=round(rank / total, 3),
                    number=f"{rank:.0f}" if has_room else "",
                    role=marked.get((row, col), ""),
                    title=_title(row * down, col * right, block),
                )
            )
    is_walkable = down == right == 1 and min(width, height) >= 6 and num_rows * num_cols <= 256
    order = np.argsort(first, axis=None, kind="stable").tolist() if is_walkable else []

    def centre(row: int, col: int) -> tuple[float, float]:
        x, y = _LEFT + (col // right + 0.5) * width, top + _HEAD + (row // down + 0.5) * height
        return round(x, 1), round(y, 1)

    path = " ".join(f"{x},{y}" for place in order for x, y in [centre(*divmod(place, num_cols))])
    parts = f", {len(mine)} tasks" if len(mine) != num_rows * num_cols else ""
    coarse = "" if down == right == 1 else f"; a cell is {down} x {right} tiles"
    note = f"{num_rows} x {num_cols} tiles{parts}{coarse}"
    picture = OpPicture(name=plan.graph.workload.tile_ops[op].name, y=top + 14, cells=cells, path=path, note=note)
    return picture, {key: centre(*key[1:]) for key in roles if key[0] == op}


def _coarseness(num_rows: int, num_cols: int) -> tuple[int, int]:
    """How many rows and columns of tiles a cell covers."""
    side = MAX_SIDE
    while True:
        down, right = -(-num_rows // side), -(-num_cols // side)
        if -(-num_rows // down) * -(-num_cols // right) <= MAX_CELLS:
            return down, right
        side //= 2


def _title(row: int, col: int, block: Ints) -> str:
    if block.size == 1:
        return f"tile ({row}, {col}): started as number {int(block.min())}"
    return f"tiles from ({row}, {col}) on: started as numbers {int(block.min())} to {int(block.max())}"


def _example(plans: Sequence[VerifiedPlan]) -> tuple[Key | None, set[Key], str]:
    """The first task that waits, and the tiles it waits for."""
    for plan in plans:
        tasks, waits = plan.plan.tasks, plan.plan.waits
        waiting = np.flatnonzero(tasks[:, 4] > tasks[:, 3])
        if not waiting.size:
            continue
        task = int(waiting[np.argmin(begin_ranks(plan.plan)[waiting])])
        is_awaited = np.zeros(len(tasks), dtype=bool)
        for low, high in waits[tasks[task, 3] : tasks[task, 4], :2].tolist():
            is_awaited |= (tasks[:, 5] >= low) & (tasks[:, 5] < high)
        awaited = {(op, row, col) for op, row, col in tasks[is_awaited, :3].tolist()}
        op, row, col = tasks[task, :3].tolist()
        names = [one.name for one in plan.graph.workload.tile_ops]
        whom = " and ".join(names[one] for one in sorted({key[0] for key in awaited}))
        if not awaited:
            return (op, row, col), set(), f"Tile ({row}, {col}) of {names[op]} waits for the other launch."
        count = f"{len(awaited):,} tile{'s' if len(awaited) > 1 else ''}"
        return (op, row, col), awaited, f"Tile ({row}, {col}) of {names[op]} waits for {count} of {whom}."
    return None, set(), "No task waits for a signal."
