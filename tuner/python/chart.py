"""The trials of a job as a small chart: self-contained SVG, for any page colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from tuner.client.documents.documents import Trial
from tuner.client.terminal import render

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 14, 34
_OURS, _LIBRARY = "#2a7de1", "#c2571a"
#: Trials slower than this many times the best are drawn at the upper edge.
_MOST = 3.0

_Scale = Callable[[float], float]


def chart(trials: Sequence[Trial], library_us: float | None, simulated: bool) -> str:
    """Each measured trial as a point, the best so far as a line, the library as another line; empty without points."""
    points = [
        (trial["number"], trial["outcome"]["time_us"])
        for trial in trials
        if trial["outcome"]["kind"] == "measured" and trial["candidate"]["schedule"] is not None
    ]
    if not points:
        return ""
    times = [time_us for _, time_us in points] + ([] if library_us is None else [library_us])
    low, high = 0.95 * min(times), 1.05 * min(max(times), _MOST * min(times))
    last = max(1, max(number for number, _ in points))

    def x(number: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * number / last

    def y(time_us: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - min(time_us, high)) / (high - low)

    dots = "".join(
        f'<circle cx="{x(number):.1f}" cy="{y(time_us):.1f}" r="3" fill="{_OURS}" fill-opacity="0.5">'
        f"<title>trial {number}: {render.microseconds(time_us)}</title></circle>"
        for number, time_us in points
    )
    title = "Trials: microseconds by trial number" + render.mark(simulated)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{escape(title)}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor" xmlns="http://www.w3.org/2000/svg">'
        f"{_axes(low, high, last)}{_library(library_us, y) if library_us else ''}{dots}"
        f'<polyline points="{_steps(points, x, y)}" fill="none" stroke="{_OURS}" stroke-width="2"/></svg>'
    )


def _steps(points: Sequence[tuple[int, float]], x: _Scale, y: _Scale) -> str:
    """The best so far, up to the last trial."""
    best = float("inf")
    corners: list[tuple[float, float]] = []
    for number, time_us in points:
        if time_us < best:
            if corners:
                corners.append((x(number), y(best)))
            best = time_us
            corners.append((x(number), y(best)))
    corners.append((x(points[-1][0]), y(best)))
    return " ".join(f"{at:.1f},{height:.1f}" for at, height in corners)


def _axes(low: float, high: float, last: int) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    return (
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{render.microseconds(high)}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">{render.microseconds(low)}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}">trial 0</text>'
        f'<text x="{right}" y="{_HEIGHT - 12}" text-anchor="end">{last}</text>'
    )


def _library(library_us: float, y: _Scale) -> str:
    height = y(library_us)
    return (
        f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" stroke="{_LIBRARY}" stroke-dasharray="6 4"/>'
        f'<text x="{_WIDTH - _RIGHT}" y="{height - 4:.1f}" text-anchor="end" fill="{_LIBRARY}">'
        f"library {render.microseconds(library_us)}</text>"
    )
