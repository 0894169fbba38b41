"""The figures of the fleet over the last day, as series."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tuner.dispatch.machine import CardReading
from tuner.service.fleet.history import FleetSample
from tuner.wire.pages.fleet import SeriesView

#: Maximum number of points in a series; minutes are grouped if there are more.
_MOST_POINTS = 240

_OF_A_CARD: tuple[tuple[str, str, Callable[[CardReading], float | None]], ...] = (
    ("temperature", "°C", lambda card: card.temperature_c),
    ("SM clock", "MHz", lambda card: card.sm_clock_mhz),
    ("power", "W", lambda card: card.power_w),
)


def series(samples: Sequence[FleetSample]) -> list[SeriesView]:
    """Trials per minute, and the driver's readings of each card in this machine."""
    if not samples:
        return []
    rates = [(sample.at, sample.trials_per_minute) for sample in samples]
    failed = [(sample.at, 60 * sample.trials.get("failed", 0) / sample.seconds) for sample in samples]
    found = [_series("Trials", "a minute", rates), _series("Failed trials", "a minute", failed)]
    for number, card in enumerate(samples[-1].cards):
        for name, unit, read in _OF_A_CARD:
            points = [
                (sample.at, float(value))
                for sample in samples
                if number < len(sample.cards)
                for value in [read(sample.cards[number])]
                if value is not None
            ]
            if points:
                found.append(_series(f"Card {number} ({card.name}): {name}", unit, points))
    return found


def _series(name: str, unit: str, points: Sequence[tuple[float, float]]) -> SeriesView:
    """A series of at most `_MOST_POINTS` points. Each point is the maximum of its group, so that peaks stay visible."""
    now, stride = time.time(), -(-len(points) // _MOST_POINTS)
    shares = [points[begin : begin + stride] for begin in range(0, len(points), stride)]
    return SeriesView(
        name=name,
        unit=unit,
        points=[((now - share[-1][0]) / 3600, max(value for _, value in share)) for share in shares],
    )
