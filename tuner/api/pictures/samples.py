"""The samples of a trial: a dot for each round of the candidate and of the library, and their quartiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from tuner.api.pictures.plot import nice_ticks
from tuner.wire.responses.samples import RoundView, SamplesView

WIDTH, _LEFT, _RIGHT, _BAND, _TOP, _BOTTOM = 760.0, 92.0, 16.0, 84.0, 10.0, 30.0


@dataclass(frozen=True, kw_only=True)
class Band:
    """The rounds of one side: the candidate or the library."""

    name: str
    #: CSS class.
    kind: str
    y: float
    height: float
    #: One per round: (x, y, whether it counts, tooltip).
    dots: list[tuple[float, float, bool, str]]
    #: Lower quartile, median and upper quartile; None if too few rounds count.
    box: tuple[float, float, float] | None
    median_us: float


@dataclass(frozen=True, kw_only=True)
class SamplesPlot:
    """Both sides on one axis, in microseconds."""

    width: float
    height: float
    left: float
    right: float
    bottom: float
    bands: list[Band]
    ticks: list[tuple[float, str]]


def draw_samples(samples: SamplesView | None) -> SamplesPlot | None:
    """The plot; None if there are no samples."""
    if samples is None or not samples.rounds:
        return None
    sides = [("this trial", "own", [(one.time_us, one) for one in samples.rounds])]
    beside = [(one.library_us, one) for one in samples.rounds if one.library_us is not None]
    if beside:
        sides.append(("library", "library", beside))
    times = [time_us for _, _, rounds in sides for time_us, _ in rounds]
    low, high = min(times), max(times)
    room = 0.06 * (high - low) or 0.05 * high
    low, high = low - room, high + room

    def x(time_us: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (time_us - low) / (high - low), 1)

    bands = []
    for place, (name, kind, rounds) in enumerate(sides):
        top = _TOP + place * (_BAND + 10)
        bands.append(_band(name, kind, top, rounds, x))
    bottom = _TOP + len(sides) * (_BAND + 10)
    ticks = [(x(tick), f"{tick:,.5g}") for tick in nice_ticks(low, high)]
    return SamplesPlot(
        width=WIDTH, height=bottom + _BOTTOM, left=_LEFT, right=WIDTH - _RIGHT, bottom=bottom, bands=bands, ticks=ticks
    )


def _band(name: str, kind: str, top: float, rounds: Sequence[tuple[float, RoundView]], x: object) -> Band:
    assert callable(x)
    kept = [time_us for time_us, one in rounds if one.kept]
    step = (_BAND - 16) / max(1, len(rounds) - 1)
    dots = [
        (
            x(time_us),
            round(top + 8 + number * step, 1),
            one.kept,
            f"round {number + 1}: {time_us:,.2f} µs" + ("" if one.kept else f", dropped: {one.dropped}"),
        )
        for number, (time_us, one) in enumerate(rounds)
    ]
    middle = median(kept or [time_us for time_us, _ in rounds])
    box = None
    if len(kept) >= 4:
        first, _, third = quantiles(kept, n=4, method="inclusive")
        box = (x(first), x(middle), x(third))
    return Band(name=name, kind=kind, y=top, height=_BAND, dots=dots, box=box, median_us=middle)
