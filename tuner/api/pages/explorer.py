"""The order explorer: grids of tiles, a path over them, and the contents of the cache, as geometry for a template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from tuner.api.http.errors import PAGE_RESPONSES
from tuner.api.http.rendering import render
from tuner.api.pictures.plot import nice_ticks
from tuner.core.plan.order.panel_cache import CachePolicy
from tuner.core.plan.order.tile_paths import Stop
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.responses.orders import DRAWN, EXACT, ExplorerPage, OrdersQuery, OrdersView, StepView, stops_of, text_of

#: Side of a tile, width of a strip of panels, space between grids, and outer margin; SVG units.
CELL, STRIP, GAP, MARGIN = 46.0, 24.0, 46.0, 24.0
_PATH = "/ui/explorer"
#: A well-known order for comparison.
_PLAINEST = "row"
_CHART_WIDTH, _CHART_HEIGHT, _CHART_LEFT, _CHART_BOTTOM = 420.0, 170.0, 34.0, 22.0


class ExplorerQuery(OrdersQuery):
    """The page's parameters: an order, and how much of it is shown."""

    step: Annotated[int | None, Query(ge=0, le=10_000, description="number of steps shown; default: all")] = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A tile as drawn."""

    name: str
    x: float
    y: float
    #: ``done``, ``now``, ``open`` or ``waiting``.
    state: str
    #: Its position on the path; empty before it is reached.
    number: str
    #: Its link: to its step, or to the path extended by it; empty for a tile that must wait.
    href: str
    label: str


@dataclass(frozen=True, kw_only=True)
class PanelPiece:
    """A panel of an operand next to or above the grid."""

    name: str
    x: float
    y: float
    width: float
    height: float
    #: ``held``, ``loaded``, ``evicted`` or ``absent``.
    state: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line between two points."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str


@dataclass(frozen=True, kw_only=True)
class TextAt:
    """A label and its position."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Board:
    """All grids of the page."""

    width: float
    height: float
    cells: list[Cell]
    pieces: list[PanelPiece]
    arrows: list[Line]
    needs: list[Line]
    words: list[TextAt]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Traffic over steps."""

    width: float
    height: float
    left: float
    bottom: float
    #: (CSS class, name, points, last total).
    lines: list[tuple[str, str, str, int]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


def explorer_routes(service: Service) -> APIRouter:
    """Adds the page and its JSON form."""
    router = APIRouter(tags=["dashboard"], responses=PAGE_RESPONSES, default_response_class=Response)

    @router.get(_PATH, response_model=ExplorerPage)
    @router.get(f"{_PATH}.json", response_model=ExplorerPage, include_in_schema=False)
    def show_explorer(request: Request, query: Annotated[ExplorerQuery, Query()]) -> Response:
        """The order explorer; as JSON with `Accept: application/json` or `.json` after the path."""
        orders = OrdersView.of(query)
        step = len(orders.steps) if query.step is None else query.step
        if step > len(orders.steps):
            raise InvalidInput(
                "step", f"the path has {len(orders.steps)} steps, but {step} was requested", "use a number up to that"
            )
        page = ExplorerPage(orders=orders, step=step, compared=_compared(query, orders))
        links = _Links(query, orders, step)
        return render(
            request,
            "explorer.html",
            page,
            board=_board(query, page, links),
            chart=_chart(page),
            links=links,
            shown=orders.steps[step - 1] if step else None,
            policies=tuple(CachePolicy),
            targets=[target.id for target, _ in service.targets()],
            whole=links.whole_path,
        )

    return router


class _Links:
    """Links to other states of the page."""

    def __init__(self, query: ExplorerQuery, orders: OrdersView, step: int) -> None:
        self._grid = query.model_dump(exclude={"order", "path", "step"}, mode="json")
        self._orders, self._step = orders, step
        self._shown = [one.tile for one in orders.steps[:step]]
        #: The parameters of the whole order, whether drawn or standard.
        self.whole_path = {**self._grid, "order": DRAWN, "path": orders.path}
        self.start = self._drawn([])
        self.undo = self._drawn(self._shown[:-1]) if step else ""
        self.first = self.at(0) if step else ""
        self.back = self.at(step - 1) if step else ""
        self.next = self.at(step + 1) if step < len(orders.steps) else ""
        self.last = self.at(len(orders.steps)) if step < len(orders.steps) else ""

    def at(self, step: int) -> str:
        """A link to the same path up to this step."""
        own = {"path": self._orders.path} if self._orders.order == DRAWN else {}
        return self._href(order=self._orders.order, **own, step=step)

    def add(self, tile: str) -> str:
        """A link to the current path, followed by this tile."""
        return self._drawn([*self._shown, tile])

    def order(self, name: str) -> str:
        """A link to a standard order or the optimum, at its first step."""
        return self._href(order=name, step=0)

    def whole(self, name: str) -> str:
        """A link to the end of the same order."""
        return self._href(order=name)

    def _drawn(self, tiles: Sequence[str]) -> str:
        return self._href(order=DRAWN, path="-".join(tiles))

    def _href(self, **state: object) -> str:
        return f"{_PATH}?{urlencode({**self._grid, **state})}"


def _compared(query: OrdersQuery, orders: OrdersView) -> dict[str, list[int]]:
    """The traffic of a simple order and of the best known order, step by step."""
    names = [one.name for one in orders.standard]
    plain = next((name for name in names if name.rpartition(".")[2] == _PLAINEST), names[-1])
    found = {plain: _totals(query, plain)}
    if orders.exact.total is not None:
        found[EXACT] = _totals(query, EXACT)
    elif names[0] != plain:
        found[names[0]] = _totals(query, names[0])
    return found


def _totals(query: OrdersQuery, name: str) -> list[int]:
    grid = query.grid
    if name == EXACT:
        path = grid.exact()[1]
    else:
        path = next(grid.path_of(one) for one in grid.orders() if one.name(is_pair=grid.is_pair) == name)
    return [step.total for step in grid.steps(path)]


def _board(query: OrdersQuery, page: ExplorerPage, links: _Links) -> Board:
    """Grids, strips, arrows and dependencies at the current step."""
    orders, shown = page.orders, page.orders.steps[: page.step]
    path = stops_of(text_of([stop for step in shown for stop in stops_of(step.tile)]))
    ops = 2 if orders.second_cols else 1
    width = [STRIP + CELL * cols for cols in (orders.cols, orders.second_cols)[:ops]]
    origins = [(MARGIN + STRIP, MARGIN + STRIP)]
    if ops == 2:
        origins.append((MARGIN + width[0] + GAP + STRIP, MARGIN + STRIP))

    def centre(stop: Stop) -> tuple[float, float]:
        x, y = origins[stop.op]
        return x + (stop.col + 0.5) * CELL, y + (stop.row + 0.5) * CELL

    return Board(
        width=2 * MARGIN + sum(width) + GAP * (ops - 1),
        height=2 * MARGIN + STRIP + CELL * orders.rows,
        cells=[_cell(stop, path, origins[stop.op], page, links) for stop in _stops(orders)],
        pieces=[piece for op in range(ops) for piece in _strips(op, origins[op], query, shown)],
        arrows=[
            _between(centre(a), centre(b), "now" if number == len(path) - 1 else "past")
            for number, (a, b) in enumerate(pairwise(path), start=1)
        ],
        needs=list(_needs(orders, path, centre)),
        words=list(_words(orders, origins)),
    )


def _stops(orders: OrdersView) -> Iterator[Stop]:
    for op, num_cols in enumerate((orders.cols, orders.second_cols)):
        yield from (Stop(op, row, col) for row in range(orders.rows) for col in range(num_cols))


def _cell(stop: Stop, path: Sequence[Stop], origin: tuple[float, float], page: ExplorerPage, links: _Links) -> Cell:
    where = f"row {stop.row}, column {stop.col}" + (" of the second product" if stop.op else "")
    done = set(path)
    if stop in done:
        place = path.index(stop) + 1
        step = page.orders.steps[place - 1]
        brought = ", ".join(step.loads) or "nothing"
        state, number, href = ("now" if place == len(path) else "done"), str(place), links.at(place)
        label = f"Tile {where}: step {place}, which loaded {brought}. Show this step."
    elif missing := _missing(stop, done, page.orders):
        state, number, href = "waiting", "", ""
        label = f"Tile {where}: waits for {', '.join(missing)}."
    else:
        state, number, href = "open", "", links.add(stop.name)
        label = f"Tile {where}: not computed. Append it to the path."
    x, y = origin[0] + stop.col * CELL, origin[1] + stop.row * CELL
    return Cell(name=stop.name, x=x, y=y, state=state, number=number, href=href, label=label)


def _missing(stop: Stop, done: set[Stop], orders: OrdersView) -> list[str]:
    if not stop.op:
        return []
    return [need.name for col in range(orders.cols) if (need := Stop(0, stop.row, col)) not in done]


def _strips(
    op: int, origin: tuple[float, float], query: OrdersQuery, shown: Sequence[StepView]
) -> Iterator[PanelPiece]:
    """The panels of a product: inputs left of the grid, weights above it."""
    num_steps, inputs, weights = query.grid.num_steps_of(op), "AH"[op], "WV"[op]
    now = shown[-1] if shown else None
    part, (x0, y0) = (STRIP - 4) / num_steps, origin

    def state(name: str) -> str:
        if now is None:
            return "absent"
        if name in now.held:
            return "loaded" if name in now.loads else "held"
        return "evicted" if name in now.evicted else "absent"

    for step in range(num_steps):
        suffix = f".{step}" if num_steps > 1 else ""
        for row in range(query.rows):
            name = f"{inputs}{row}{suffix}"
            x, y = x0 - STRIP + part * step, y0 + row * CELL + 3
            yield PanelPiece(name=name, x=x, y=y, width=part - 1, height=CELL - 6, state=state(name))
        for col in range(query.grid.num_cols_of(op)):
            name = f"{weights}{col}{suffix}"
            x, y = x0 + col * CELL + 3, y0 - STRIP + part * step
            yield PanelPiece(name=name, x=x, y=y, width=CELL - 6, height=part - 1, state=state(name))


def _words(orders: OrdersView, origins: Sequence[tuple[float, float]]) -> Iterator[TextAt]:
    for op, (x, y) in enumerate(origins):
        for row in range(orders.rows):
            yield TextAt(x=x - STRIP - 4, y=y + (row + 0.5) * CELL + 4, text=f"{'AH'[op]}{row}")
        for col in range((orders.cols, orders.second_cols)[op]):
            yield TextAt(x=x + (col + 0.5) * CELL + 9, y=y - STRIP - 5, text=f"{'WV'[op]}{col}")


def _between(a: tuple[float, float], b: tuple[float, float], kind: str) -> Line:
    """An arrow between two tiles, with space for their numbers at the ends."""
    (x1, y1), (x2, y2) = a, b
    length = max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    room = 12.0
    return Line(
        x1=round(x1 + room * dx, 1),
        y1=round(y1 + room * dy, 1),
        x2=round(x2 - (room + 3) * dx, 1),
        y2=round(y2 - (room + 3) * dy, 1),
        kind=kind,
    )


def _needs(orders: OrdersView, path: Sequence[Stop], centre: object) -> Iterator[Line]:
    """Dependencies: the tiles of the first product that the current tile reads, or the tiles that wait for the current
    one.
    """
    if not path or not orders.second_cols or not callable(centre):
        return
    now, done = path[-1], set(path)
    if now.op:
        pairs = [(Stop(0, now.row, col), now) for col in range(orders.cols)]
    else:
        pairs = [(now, Stop(1, now.row, col)) for col in range(orders.second_cols)]
    is_ready = all(Stop(0, now.row, col) in done for col in range(orders.cols))
    for producer, consumer in pairs:
        (x1, y1), (x2, y2) = centre(producer), centre(consumer)
        kind = "ready" if is_ready else "waits"
        yield Line(x1=x1 + CELL / 2 - 4, y1=y1 + 9, x2=x2 - CELL / 2 + 4, y2=y2 + 9, kind=kind)


def _chart(page: ExplorerPage) -> Chart:
    """The traffic of the path so far, and of other orders."""
    own = [step.total for step in page.orders.steps[: page.step]]
    lines = [*page.compared.items(), ("this path", own)]
    most = max(2, *(totals[-1] for _, totals in lines if totals))
    last = page.orders.num_tiles
    right, top = _CHART_WIDTH - 8, 8.0
    bottom = _CHART_HEIGHT - _CHART_BOTTOM

    def x(step: float) -> float:
        return round(_CHART_LEFT + (right - _CHART_LEFT) * step / last, 1)

    def y(total: float) -> float:
        return round(bottom - (bottom - top) * total / most, 1)

    def points(totals: list[int]) -> str:
        return " ".join(f"{x(step)},{y(total)}" for step, total in enumerate([0, *totals]))

    def kind(name: str, place: int) -> str:
        return "own" if name == "this path" else "best" if name == EXACT or place else "plain"

    return Chart(
        width=_CHART_WIDTH,
        height=_CHART_HEIGHT,
        left=_CHART_LEFT,
        bottom=bottom,
        lines=[
            (kind(name, place), name, points(totals), totals[-1] if totals else 0)
            for place, (name, totals) in enumerate(lines)
        ],
        x_ticks=[(x(tick), f"{tick:.0f}") for tick in nice_ticks(0, last) if tick == int(tick)],
        y_ticks=[(y(tick), f"{tick:.0f}") for tick in nice_ticks(0, most, 4) if tick == int(tick)],
    )
