"""A ladder's gain over the library by number of rows: a curve with intervals, above the range of each kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tuner.api.pictures.plot import nice_ticks
from tuner.core.units import counted
from tuner.wire.responses.batches import GainView, LadderView, RungView

WIDTH, HEIGHT = 760.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 16.0, 30.0, 38.0
#: Number of colours for kernels; if there are more kernels, colours repeat.
_NUM_COLOURS = 7
#: Minimum width of a tick's label, and of a range's, in SVG units.
_TICK_ROOM, _LABEL_ROOM = 28.0, 52.0


@dataclass(frozen=True, kw_only=True)
class Range:
    """Adjacent numbers of rows with the same kernel."""

    x: float
    width: float
    #: CSS class: a kernel's colour, or the library's.
    kind: str
    #: What runs; empty if there is no space for the text.
    label: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """The gain at a measured number of rows."""

    x: float
    y: float
    #: The 95 % interval, upper end first; None if unknown.
    interval: tuple[float, float] | None
    kind: str
    title: str


@dataclass(frozen=True, kw_only=True)
class LadderPicture:
    """Positions in SVG units, y downwards. Rows are on a logarithmic axis."""

    ranges: tuple[Range, ...]
    points: tuple[Point, ...]
    #: The curve's `points` attribute.
    line: str
    #: The position of the library.
    even_y: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


def draw_ladder(ladder: LadderView) -> LadderPicture | None:
    """The picture; None if nothing was measured."""
    if not ladder.gains or not ladder.rungs:
        return None
    most = math.log2(ladder.rungs[-1].m_hi + 0.5)

    def x(rows: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log2(rows) + 1) / (most + 1), 1)

    ends: list[float] = [1.0, *(end for gain in ladder.gains for end in (gain.speedup, *(gain.speedup_ci95 or ())))]
    room = 0.1 * (max(ends) - min(ends)) or 0.05
    low, high = min(ends) - room, max(ends) + room

    def y(speedup: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (high - speedup) / (high - low), 1)

    points = tuple(_point(gain, x, y) for gain in ladder.gains)
    return LadderPicture(
        ranges=_ranges(ladder.rungs, x),
        points=points,
        line=" ".join(f"{point.x},{point.y}" for point in points),
        even_y=y(1.0),
        x_ticks=_row_ticks([gain.m for gain in ladder.gains], x),
        y_ticks=tuple((y(tick), f"{tick:.4g}x") for tick in nice_ticks(low, high)),
    )


def _point(gain: GainView, x: Callable[[float], float], y: Callable[[float], float]) -> Point:
    title = f"{counted(gain.m, 'row')}: {gain.speedup:.3f}x the library's speed"
    interval = None
    if gain.speedup_ci95:
        low, high = gain.speedup_ci95
        title += f", 95 % interval {low:.3f} to {high:.3f}"
        interval = (y(high), y(low))
    title += f", {_what(gain.kernel)}"
    return Point(x=x(gain.m), y=y(gain.speedup), interval=interval, kind=_kind(gain.kernel), title=title)


def _ranges(rungs: Sequence[RungView], x: Callable[[float], float]) -> tuple[Range, ...]:
    """The ranges, each from half a row before its first row to half a row after its last, so that a single row has a
    width."""
    found = []
    for kernel, members in groupby(rungs, key=lambda rung: rung.kernel):
        same = list(members)
        first, last = same[0].m_lo, same[-1].m_hi
        begin, end = x(first - 0.5), x(last + 0.5)
        rows = counted(first, "row") if first == last else f"{first} to {last} rows"
        label = _what(kernel) if end - begin >= _LABEL_ROOM else "" if kernel is None else str(kernel)
        kind, title = _kind(kernel), f"{rows}: {_what(kernel)}"
        found.append(Range(x=begin, width=round(end - begin, 1), kind=kind, label=label, title=title))
    return tuple(found)


def _row_ticks(rows: Sequence[int], x: Callable[[float], float]) -> tuple[tuple[float, str], ...]:
    """Ticks at the measured numbers of rows, from the largest down, as far as there is space."""
    ticks: list[tuple[float, str]] = []
    for m in sorted(rows, reverse=True):
        if not ticks or ticks[-1][0] - x(m) >= _TICK_ROOM:
            ticks.append((x(m), str(m)))
    return tuple(reversed(ticks))


def _what(kernel: int | None) -> str:
    return "library" if kernel is None else f"kernel {kernel}"


def _kind(kernel: int | None) -> str:
    return "library" if kernel is None else f"k{1 + kernel % _NUM_COLOURS}"
