"""Orders of small grids: the request, and each step of a path with the contents of the cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from tuner.core.plan.order.panel_cache import CachePolicy, CacheStep, Piece
from tuner.core.plan.order.tile_paths import StandardOrder, Stop, TileGrid
from tuner.errors import InvalidInput
from tuner.wire.base.view import View

#: Maximum number of tile rows and columns, and of k-steps, so that a page is readable and a response is below a
#: megabyte.
MAX_SIDE, MAX_STEPS, MAX_CACHE = 8, 8, 512
#: Names of orders that are not standard orders.
DRAWN, EXACT = "drawn", "exact"

_STOP = re.compile(r"(b?)(\d{1,2})\.(\d{1,2})")


class OrdersQuery(BaseModel):
    """The query of `GET /orders`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rows: Annotated[int, Field(ge=1, le=MAX_SIDE, description="tile rows")] = 4
    cols: Annotated[int, Field(ge=1, le=MAX_SIDE, description="tile columns of the first product")] = 4
    k: Annotated[int, Field(ge=1, le=MAX_STEPS, description="k-steps of a tile of the first product")] = 1
    second_cols: Annotated[
        int, Field(ge=0, le=MAX_SIDE, description="tile columns of a second product, which reads the first; 0 for none")
    ] = 0
    cache: Annotated[int, Field(ge=2, le=MAX_CACHE, description="number of pieces that the cache holds")] = 4
    policy: Annotated[CachePolicy, Field(description="which piece is evicted when space is needed")] = CachePolicy.LRU
    order: Annotated[
        str,
        Field(
            max_length=40,
            description="a name from `standard`, `exact` for the optimum, or `drawn` for the tiles of `path`",
        ),
    ] = DRAWN
    path: Annotated[
        str,
        Field(
            max_length=1000,
            description=(
                "with `drawn`: tiles as `row.col`, those of the second product as "
                "`brow.col`, separated by `-`, e.g. `0.0-0.1-1.1`"
            ),
        ),
    ] = ""

    @property
    def grid(self) -> TileGrid:
        """The requested grid and cache."""
        return TileGrid(
            num_rows=self.rows,
            num_cols=self.cols,
            num_steps=self.k,
            second_cols=self.second_cols,
            cache_size=self.cache,
            policy=self.policy,
        )


def stops_of(text: str) -> tuple[Stop, ...]:
    """The tiles of a path in its one-line form.

    Raises:
        InvalidInput: a tile is invalid, with its name.
    """
    stops = []
    for word in text.split("-") if text else ():
        found = _STOP.fullmatch(word)
        if found is None:
            raise InvalidInput(
                "path", f"{word!r} is not a tile", "use row.col, or brow.col for the second product, e.g. 0.1"
            )
        stops.append(Stop(int(bool(found[1])), int(found[2]), int(found[3])))
    return tuple(stops)


def text_of(path: Sequence[Stop]) -> str:
    """Inverse of `stops_of`."""
    return "-".join(stop.name for stop in path)


class StepView(View):
    """One tile of a path, and its effect on the cache."""

    tile: str
    reads: list[str] = Field(description="pieces in reading order, e.g. `A0`, or `A0.1` for k-step 1")
    loads: list[str] = Field(description="pieces that came from memory")
    evicted: list[str]
    held: list[str] = Field(description="content of the cache afterwards; the next one to be evicted comes first")
    total: int = Field(description="pieces from memory up to and including this tile")

    @classmethod
    def of(cls, stop: Stop, step: CacheStep, grid: TileGrid) -> Self:
        """Copies `step`, which is at `stop`."""

        def names(pieces: Sequence[Piece]) -> list[str]:
            return [piece_name(piece, grid) for piece in pieces]

        return cls(
            tile=stop.name,
            reads=names(step.reads),
            loads=names(step.loads),
            evicted=names(step.evicted),
            held=names(step.held),
            total=step.total,
        )


def piece_name(piece: Piece, grid: TileGrid) -> str:
    """``A0``, or ``A0.1`` if its operand has several k-steps."""
    num_steps = grid.num_steps_of(piece.operand in "HV")
    return f"{piece.operand}{piece.panel}" + (f".{piece.step}" if num_steps > 1 else "")


class StandardView(View):
    """A standard order and its traffic."""

    name: str
    total: int = Field(description="pieces from memory")


class ExactView(View):
    """The optimum over all paths from tile 0.0."""

    total: int | None = Field(description="minimum pieces from memory; null if unknown")
    path: str = Field(description="the first such path; empty if unknown")
    reason: str = Field(description="why it is unknown; empty if it is known")


class OrdersView(View):
    """A path over a grid, the cache's contents along it, and the traffic of other orders."""

    rows: int
    cols: int
    k: int
    second_cols: int
    cache: int
    policy: CachePolicy
    order: str
    path: str
    is_whole: bool = Field(description="whether the path visits every tile")
    num_tiles: int
    least: int = Field(description="minimum pieces of any path: each of them once")
    total: int = Field(description="pieces from memory so far")
    steps: list[StepView]
    standard: list[StandardView] = Field(description="the standard orders, least traffic first")
    exact: ExactView
    open: list[str] = Field(description="tiles that can come next")
    waiting: dict[str, list[str]] = Field(description="tiles that cannot come next -> what they wait for")

    @classmethod
    def of(cls, query: OrdersQuery) -> Self:
        """Answers `query`.

        Raises:
            InvalidInput: the path is invalid, or the order is unknown.
        """
        grid = query.grid
        orders = {order.name(is_pair=grid.is_pair): order for order in grid.orders()}
        path = _path(query, grid, orders)
        steps = grid.steps(path)
        totals = {name: grid.steps(grid.path_of(order))[-1].total for name, order in orders.items()}
        ranked = sorted(totals.items(), key=lambda item: item[1])
        done = set(path)
        left = {stop: grid.missing(stop, done) for stop in _all_stops(grid) if stop not in done}
        return cls(
            rows=query.rows,
            cols=query.cols,
            k=query.k,
            second_cols=query.second_cols,
            cache=query.cache,
            policy=query.policy,
            order=query.order,
            path=text_of(path),
            is_whole=not left,
            num_tiles=grid.num_tiles,
            least=_least(grid),
            total=steps[-1].total if steps else 0,
            steps=[StepView.of(stop, step, grid) for stop, step in zip(path, steps, strict=True)],
            standard=[StandardView(name=name, total=total) for name, total in ranked],
            exact=_exact(grid),
            open=[stop.name for stop, missing in left.items() if not missing],
            waiting={stop.name: [one.name for one in missing] for stop, missing in left.items() if missing},
        )


def _path(query: OrdersQuery, grid: TileGrid, orders: dict[str, StandardOrder]) -> tuple[Stop, ...]:
    if query.order == DRAWN:
        return stops_of(query.path)
    if query.path:
        raise InvalidInput("path", f"the order {query.order} has its own path", f"leave it out, or use {DRAWN}")
    if query.order == EXACT:
        return grid.exact()[1]
    if query.order not in orders:
        known = ", ".join((DRAWN, EXACT, *orders))
        raise InvalidInput("order", f"{query.order!r} is not an order of this grid", f"use one of {known}")
    return grid.path_of(orders[query.order])


def _exact(grid: TileGrid) -> ExactView:
    try:
        total, path = grid.exact()
    except InvalidInput as error:
        return ExactView(total=None, path="", reason=f"{error.problem}; {error.remedy}")
    return ExactView(total=total, path=text_of(path), reason="")


def _all_stops(grid: TileGrid) -> list[Stop]:
    return [
        Stop(op, row, col)
        for op in range(1 + grid.is_pair)
        for row in range(grid.num_rows)
        for col in range(grid.num_cols_of(op))
    ]


def _least(grid: TileGrid) -> int:
    return sum(grid.num_steps_of(op) * (grid.num_rows + grid.num_cols_of(op)) for op in range(1 + grid.is_pair))


class ExplorerPage(View):
    """The order explorer: an order, the current step, and other orders for comparison."""

    orders: OrdersView
    step: int = Field(description="number of steps shown, 0 for none")
    compared: dict[str, list[int]] = Field(description="order -> pieces from memory after each of its steps")
