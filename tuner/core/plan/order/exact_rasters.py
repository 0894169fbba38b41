"""Exact orders of small grids: the minimum traffic over all paths from tile (0, 0), and every path that achieves it.

A tile (r, c) of an output reads operand row panel r (of A) and column panel c (of the weights), in as many pieces as
there are k-steps. A cache of S pieces keeps the most recently used or the most recently loaded ones; any other piece
comes from memory and costs 1. The search is a dynamic program over the remaining tiles and the contents of the cache.
It prunes in two ways: states that differ only in the numbering of rows and columns are equal, and a state that needs
more pieces than the budget allows is abandoned. So a few thousand states represent 15! paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import factorial

from tuner.core.plan.order.panel_cache import CachePolicy, Tile
from tuner.errors import InvalidInput

#: Maximum tile rows, and tile columns, of a grid; larger grids have too many states.
MAX_SIDE = 4
#: Maximum k-steps of all tiles together, if a tile has more than one.
MAX_SPLIT = 24

Path = tuple[Tile, ...]
#: [tile row] the columns done, as bits; and the contents of the cache, with the next piece to be evicted last. With K
#: k-steps, step k of row r is r * K + k, and of column c it is (num_rows + c) * K + k.
_Situation = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class ExactOrders:
    """Properties of all paths of a grid."""

    #: Tile rows and tile columns.
    num_rows: int
    num_cols: int
    #: Operand panels that the cache holds, or pieces if there are several k-steps.
    cache_panels: int
    #: K-steps of a tile, and which piece is evicted when space is needed; the optimal policy is not allowed.
    num_steps: int = 1
    policy: CachePolicy = CachePolicy.LRU
    #: Minimum number of panels, or pieces, that a path from (0, 0) loads.
    least_panels: int
    #: Optimal paths; those that differ only in the numbering of rows or columns count once.
    num_paths: int

    def paths(self) -> Iterator[Path]:
        """The optimal paths up to symmetry, in lexicographic order; new rows are visited in order, and so
        are new columns."""
        search = _Search(self.num_rows, self.num_cols, self.cache_panels, self.num_steps, self.policy)
        return search.paths(search.start, self.least_panels)


@lru_cache(maxsize=256)
def exact_orders(
    num_rows: int, num_cols: int, cache_panels: int, num_steps: int = 1, policy: CachePolicy = CachePolicy.LRU
) -> ExactOrders:
    """The exact minimum traffic over all paths from tile (0, 0).

    Raises:
        InvalidInput: the grid is empty or beyond 4 x 4, there are no or too many k-steps, the cache holds less than the
            operands of one k-step, or its policy is the optimal one.
    """
    least = fewest_panels(num_rows, num_cols, cache_panels, num_steps, policy)
    search = _Search(num_rows, num_cols, cache_panels, num_steps, policy)
    num_paths = search.count(search.start, least)
    return ExactOrders(
        num_rows=num_rows,
        num_cols=num_cols,
        cache_panels=cache_panels,
        num_steps=num_steps,
        policy=policy,
        least_panels=least,
        num_paths=num_paths // (factorial(num_rows - 1) * factorial(num_cols - 1)),
    )


@lru_cache(maxsize=256)
def fewest_panels(
    num_rows: int, num_cols: int, cache_panels: int, num_steps: int = 1, policy: CachePolicy = CachePolicy.LRU
) -> int:
    """Minimum number of pieces that a path from (0, 0) loads; much faster to compute than the number of optimal paths.

    Raises:
        InvalidInput: see `exact_orders`.
    """
    _check(num_rows, num_cols, cache_panels, num_steps, policy)
    search = _Search(num_rows, num_cols, cache_panels, num_steps, policy)
    least = num_steps * (num_rows + num_cols)  # each piece is loaded at least once
    while not search.can(search.start, least):
        least += 1
    return least


@lru_cache(maxsize=256)
def best_path(
    num_rows: int, num_cols: int, cache_panels: int, num_steps: int = 1, policy: CachePolicy = CachePolicy.LRU
) -> Path:
    """The first optimal path in lexicographic order.

    Raises:
        InvalidInput: see `exact_orders`.
    """
    least = fewest_panels(num_rows, num_cols, cache_panels, num_steps, policy)
    search = _Search(num_rows, num_cols, cache_panels, num_steps, policy)
    return next(search.paths(search.start, least))


def grid_text(path: Path) -> str:
    """The grid, each tile with its position in the path."""
    place = {tile: index for index, tile in enumerate(path)}
    num_rows, num_cols = (1 + max(tile[axis] for tile in path) for axis in (0, 1))
    width = len(str(len(path) - 1))
    return "\n".join(" ".join(f"{place[row, col]:>{width}}" for col in range(num_cols)) for row in range(num_rows))


def _check(num_rows: int, num_cols: int, cache_panels: int, num_steps: int, policy: CachePolicy) -> None:
    if min(num_rows, num_cols) < 1:
        raise InvalidInput("grid", f"{num_rows} x {num_cols} has no tiles", "use at least 1 x 1")
    if max(num_rows, num_cols) > MAX_SIDE:
        raise InvalidInput(
            "grid",
            f"exact orders of {num_rows} x {num_cols} tiles take too long; the limit is {MAX_SIDE} x {MAX_SIDE}",
            "take a corner of the grid, or the hilbert raster, which is near the optimum on any grid",
        )
    if cache_panels < 2:
        raise InvalidInput(
            "cache",
            f"{cache_panels} panels cannot hold the operands of one tile, a row panel and a column panel",
            "use at least 2",
        )
    if num_steps < 1 or (num_steps > 1 and num_steps * num_rows * num_cols > MAX_SPLIT):
        most = max(1, MAX_SPLIT // (num_rows * num_cols))
        what = f"exact orders of {num_rows} x {num_cols} tiles with {num_steps} k-steps take too long"
        raise InvalidInput("k", what, f"use 1 to {most}, or a smaller grid")
    if policy is CachePolicy.OPTIMAL:
        remedy = "use lru or fifo, or follow paths one by one"
        raise InvalidInput("policy", "exact orders are known only for lru and fifo", remedy)


class _Search:
    """Counts and lists the paths of one grid that load a given number of pieces."""

    def __init__(
        self, num_rows: int, num_cols: int, cache_panels: int, num_steps: int = 1, policy: CachePolicy = CachePolicy.LRU
    ) -> None:
        self._num_rows, self._num_cols, self._size = num_rows, num_cols, cache_panels
        self._num_steps, self._keeps_order = num_steps, policy is CachePolicy.FIFO
        self._whole = (1 << num_cols) - 1
        self._counts: dict[tuple[_Situation, int], int] = {}
        self._known: dict[tuple[_Situation, int], bool] = {}
        self.start: _Situation = ((0,) * num_rows, ())

    def count(self, situation: _Situation, budget: int) -> int:
        """Number of completions that load exactly `budget` pieces; none loads fewer."""
        masks = situation[0]
        if all(mask == self._whole for mask in masks):
            return int(budget == 0)
        needed = self._needed(situation)
        if needed > budget:
            return 0
        if self._size >= self._num_steps * (
            self._num_rows + self._num_cols
        ):  # nothing is ever evicted, so any order works
            num_left = sum((self._whole ^ mask).bit_count() for mask in masks)
            return factorial(num_left if any(masks) else num_left - 1) * (needed == budget)
        key = (self._plain(situation), budget)
        if key not in self._counts:
            steps = self._first_step() if not any(masks) else self._steps(key[0])
            self._counts[key] = sum(self.count(after, budget - misses) for _, after, misses in steps)
        return self._counts[key]

    def can(self, situation: _Situation, budget: int) -> bool:
        """Whether a completion loads at most `budget` pieces."""
        masks = situation[0]
        if all(mask == self._whole for mask in masks):
            return budget >= 0
        if self._needed(situation) > budget:
            return False
        if self._size >= self._num_steps * (self._num_rows + self._num_cols):
            return True
        key = (self._plain(situation), budget)
        if key not in self._known:
            steps = self._first_step() if not any(masks) else self._steps(key[0])
            self._known[key] = any(
                self.can(after, budget - misses) for _, after, misses in sorted(steps, key=lambda step: step[2])
            )
        return self._known[key]

    def paths(self, situation: _Situation, budget: int, rows_met: int = 0, cols_met: int = 0) -> Iterator[Path]:
        """The completions that `count` counts, in lexicographic order; new rows and columns are visited in order."""
        if all(mask == self._whole for mask in situation[0]):
            yield ()
            return
        for tile, after, misses in self._steps(situation):
            row, col = tile
            if row <= rows_met and col <= cols_met and self.can(after, budget - misses):
                rows, cols = max(rows_met, row + 1), max(cols_met, col + 1)
                yield from ((tile, *rest) for rest in self.paths(after, budget - misses, rows, cols))

    def _needed(self, situation: _Situation) -> int:
        """Pieces that are still needed but not in the cache, each of which is loaded at least once."""
        masks, recent = situation
        common, num_steps = self._whole, self._num_steps
        for mask in masks:
            common &= mask
        left = [mask != self._whole for mask in masks]
        left += [not common >> col & 1 for col in range(self._num_cols)]
        return num_steps * sum(left) - sum(left[piece // num_steps] for piece in recent)

    def _first_step(self) -> Iterator[tuple[Tile, _Situation, int]]:
        return (step for step in self._steps(self.start) if step[0] == (0, 0))

    def _steps(self, situation: _Situation) -> Iterator[tuple[Tile, _Situation, int]]:
        """Each possible next tile, the following state, and the panels that it loads."""
        masks, recent = situation
        for row, mask in enumerate(masks):
            for col in range(self._num_cols):
                if mask >> col & 1:
                    continue
                held, misses = list(recent), 0
                for step in range(self._num_steps):
                    for panel in (row, self._num_rows + col):
                        misses += self._use(held, panel * self._num_steps + step)
                done = (*masks[:row], mask | 1 << col, *masks[row + 1 :])
                yield (row, col), (done, tuple(held)), misses

    def _use(self, held: list[int], piece: int) -> bool:
        """Reads a piece; returns whether it came from memory."""
        is_miss = piece not in held
        if is_miss or not self._keeps_order:
            if not is_miss:
                held.remove(piece)
            held.insert(0, piece)
            del held[self._size :]
        return is_miss

    def _plain(self, situation: _Situation) -> _Situation:
        """The same state in canonical numbering: cached rows and columns by last use, the others sorted."""
        masks, recent = situation
        num_steps = self._num_steps
        panels = list(dict.fromkeys(piece // num_steps for piece in recent))
        rows = [panel for panel in panels if panel < self._num_rows]
        cols = [panel - self._num_rows for panel in panels if panel >= self._num_rows]
        other_rows = [row for row in range(self._num_rows) if row not in rows]
        other_cols = [col for col in range(self._num_cols) if col not in cols]
        named = min(
            (*(_picked(masks[row], order) for row in rows), *sorted(_picked(masks[row], order) for row in other_rows))
            for order in ((*cols, *rest) for rest in permutations(other_cols))
        )
        names = {row: name for name, row in enumerate(rows)}
        names |= {self._num_rows + col: self._num_rows + name for name, col in enumerate(cols)}
        return named, tuple(names[piece // num_steps] * num_steps + piece % num_steps for piece in recent)


@lru_cache(maxsize=4096)
def _picked(mask: int, order: tuple[int, ...]) -> int:
    """The mask whose bit i is bit order[i] of `mask`."""
    return sum((mask >> col & 1) << i for i, col in enumerate(order))
