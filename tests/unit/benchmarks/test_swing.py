"""What the benchmark of the clock's swing takes and says, without a card."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.common.kept import kept_for
from benchmarks.trust.swing import NUM_REPEATS, NUM_ROUNDS, ROWS, figures_of, series_by


@pytest.mark.parametrize("row", ROWS)
def test_winners_are_kept_for_its_rows(row: str) -> None:
    assert any(one.candidate.plan_kind.is_ours for one in kept_for(row, "h100"))


class Swinging:
    """A timer whose samples swing for a while behind a pause, and less behind a load."""

    def __init__(self) -> None:
        self.loaded = 0

    def rest(self) -> None:
        self.loaded = 0

    def keep_busy(self, graph: float) -> Iterator[int]:
        while True:
            self.loaded += 1
            yield self.loaded

    def rounds(self, graphs: list[float], is_over: Callable[[list[list[Any]], float], bool]) -> list[list[Any]]:
        tracks: list[list[Any]] = [[] for _ in graphs]
        while not is_over(tracks, 0.0):
            number = len(tracks[0])
            for place, graph in enumerate(graphs):
                swing_now = 0.0 if self.loaded else 0.05 * math.cos(math.pi * number + place) * 0.8**number
                tracks[place].append(type("Sample", (), {"time_us": graph * (1 + swing_now)}))
        return tracks


def test_a_load_that_settles_the_clock_is_told_by_the_scatter() -> None:
    found = series_by(Swinging(), [200.0, 160.0, 100.0], [(0.0, 0.0), (0.0, 0.001)])
    assert [len(series) for series in found.values()] == [NUM_REPEATS] * 2
    idle, loaded = (figures_of(series) for series in found.values())
    assert loaded["by_round"] == [1.0] * NUM_ROUNDS
    assert (loaded["scatter"], loaded["ratios"]) == (0.0, [1.25, 2.0])
    assert idle["scatter"] > 0.01
    assert max(idle["by_round"]) - min(idle["by_round"]) > 0.01
