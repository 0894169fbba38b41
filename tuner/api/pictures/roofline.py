"""The roofline: the data sheet's limit by arithmetic intensity, and the positions of runs.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.api.pictures.plot import log_ticks
from tuner.wire.pages.trial_page import RooflineView

WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760.0, 300.0, 66.0, 20.0, 14.0, 44.0


@dataclass(frozen=True, kw_only=True)
class RooflineDot:
    """A run."""

    x: float
    y: float
    name: str
    title: str
    is_counted: bool
    #: Its share of the limit at its intensity.
    share: float


@dataclass(frozen=True, kw_only=True)
class RooflinePlot:
    """The roofline as geometry; both axes are logarithmic."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    #: Points of the roof.
    roof: str
    ridge_x: float
    dots: list[RooflineDot]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


def draw_roofline(view: RooflineView | None) -> RooflinePlot | None:
    """The plot; None if there is no run to show."""
    if view is None or not view.points:
        return None
    ridge = view.flops_per_s / view.dram_bytes_per_s
    runs = [(view.flops / one.dram_bytes, view.flops / one.time_us * 1e6, one) for one in view.points]
    low_x = min(ridge, *(run[0] for run in runs)) / 4
    high_x = max(ridge, *(run[0] for run in runs)) * 4
    high_y = view.flops_per_s * 2
    low_y = min(min(run[1] for run in runs), low_x * view.dram_bytes_per_s) / 1.5

    def x(intensity: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * math.log(intensity / low_x) / math.log(high_x / low_x), 1)

    def y(rate: float) -> float:
        share = math.log(rate / low_y) / math.log(high_y / low_y)
        return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * share, 1)

    def allowed(intensity: float) -> float:
        return min(view.flops_per_s, intensity * view.dram_bytes_per_s)

    corners = (low_x, ridge, high_x)
    return RooflinePlot(
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        top=_TOP,
        bottom=HEIGHT - _BOTTOM,
        roof=" ".join(f"{x(at)},{y(allowed(at))}" for at in corners),
        ridge_x=x(ridge),
        dots=[
            RooflineDot(
                x=x(intensity),
                y=y(rate),
                name=one.name,
                title=f"{one.name}: {intensity:,.4g} FLOP/byte, {rate / 1e12:,.4g} TFLOP/s",
                is_counted=one.is_counted,
                share=rate / allowed(intensity),
            )
            for intensity, rate, one in runs
        ],
        x_ticks=[(x(tick), f"{tick:,.4g}") for tick in log_ticks(low_x, high_x)],
        y_ticks=[(y(tick * 1e12), f"{tick:,.4g}") for tick in log_ticks(low_y / 1e12, high_y / 1e12)],
    )
