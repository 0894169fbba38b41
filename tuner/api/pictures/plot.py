"""The best-so-far plot, as geometry for a template that writes SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 132.0, 14.0, 36.0
#: The axis is logarithmic if the longest time is more than this multiple of the shortest.
_LOG_FROM = 5.0
_MIN_LABEL_GAP = 15.0


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A labelled position on an axis."""

    #: SVG units along the axis.
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A horizontal reference line."""

    #: CSS class of the line.
    name: str
    label: str
    time_us: float
    #: SVG units; labels may be moved to avoid overlaps.
    y: float
    label_y: float


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Positions in SVG units, y downwards."""

    #: The step line's `points` attribute.
    line: str
    #: (x, y, tooltip) of each improvement.
    improvements: tuple[tuple[float, float, str], ...]
    baselines: tuple[Baseline, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM
    width: float = WIDTH
    height: float = HEIGHT


def draw(
    curve: Sequence[tuple[int, float]],
    num_trials: int,
    num_planned: int,
    baselines: Sequence[tuple[str, str, float | None]],
) -> Plot | None:
    """Plots (trial number, microseconds) of each best so far, on an axis of planned trials.

    Returns None if there are no points. Baselines are (CSS class, label, microseconds); those without a time are left
    out.
    """
    if not curve:
        return None
    known = [(name, label, time_us) for name, label, time_us in baselines if time_us is not None]
    times = [time_us for _, time_us in curve] + [time_us for _, _, time_us in known]
    scale = _Scale(min(times), max(times))
    run = max(num_trials, curve[-1][0] + 1)
    last = max(run, num_planned, 2)

    def x(number: float) -> float:
        return round(_LEFT + (WIDTH - _RIGHT - _LEFT) * number / last, 1)

    points = []
    for (number, time_us), (until, _) in zip(curve, [*curve[1:], (run, 0.0)], strict=True):
        points += [f"{x(number)},{scale.y(time_us)}", f"{x(until)},{scale.y(time_us)}"]
    return Plot(
        line=" ".join(points),
        improvements=tuple((x(n), scale.y(t), f"trial {n}: {t:,.1f} µs") for n, t in curve),
        baselines=_place(known, scale),
        x_ticks=tuple(Tick(at=x(n), label=f"{n:,.0f}") for n in nice_ticks(0, last)),
        y_ticks=tuple(Tick(at=scale.y(t), label=f"{t:,.6g}") for t in scale.ticks()),
    )


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` + 1 round numbers from `low` to `high`."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, final = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, final + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between `low` and `high`; only the powers if there are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]


class _Scale:
    """Maps microseconds to SVG units."""

    def __init__(self, low: float, high: float) -> None:
        self._is_log = high / low > _LOG_FROM
        margin = 0.08 * ((math.log(high / low) if self._is_log else high - low) or low)
        grow = math.exp(margin)
        self._low, self._high = (low / grow, high * grow) if self._is_log else (max(0.0, low - margin), high + margin)

    def y(self, time_us: float) -> float:
        """The position of a time, SVG units, downwards."""
        low, high, value = self._low, self._high, time_us
        if self._is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(_TOP + (HEIGHT - _BOTTOM - _TOP) * (high - value) / (high - low), 1)

    def ticks(self) -> list[float]:
        """The times at which the axis has ticks, microseconds."""
        return log_ticks(self._low, self._high) if self._is_log else nice_ticks(self._low, self._high)


def _place(known: Sequence[tuple[str, str, float]], scale: _Scale) -> tuple[Baseline, ...]:
    """The lines from top to bottom; each label is at least a line's height below the previous one."""
    placed: list[Baseline] = []
    for name, label, time_us in sorted(known, key=lambda row: -row[2]):
        y = scale.y(time_us)
        lowest = placed[-1].label_y + _MIN_LABEL_GAP if placed else 0.0
        placed.append(Baseline(name=name, label=label, time_us=time_us, y=y, label_y=max(y, lowest)))
    return tuple(placed)
