"""The geometry of the best-so-far plot."""

from __future__ import annotations

import itertools

import pytest

from tuner.api.pictures.plot import HEIGHT, WIDTH, draw, log_ticks, nice_ticks


def test_there_is_nothing_to_draw_before_the_first_trial() -> None:
    assert draw([], 0, 60, [("library", "library", 3.0)]) is None


@pytest.mark.parametrize(
    "curve", [[(0, 5.0)], [(1, 80.0), (9, 60.0)], [(1, 20_000.0), (5, 60.0)], [(3, 0.01), (4, 0.01)]]
)
def test_every_point_and_line_lies_inside_the_picture(curve: list[tuple[int, float]]) -> None:
    plot = draw(
        curve, 10, 60, [("library", "library", 70.0), ("two-launches", "two", None), ("reference", "bound", 49.0)]
    )
    assert plot is not None
    points = [tuple(float(part) for part in point.split(",")) for point in plot.line.split()]
    assert all(plot.left <= x <= plot.right and plot.top <= y <= plot.bottom for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [line.name for line in plot.baselines] == ["library", "reference"]
    assert all(0 <= tick.at <= max(WIDTH, HEIGHT) for tick in (*plot.x_ticks, *plot.y_ticks))
    assert len(plot.y_ticks) >= 2


def test_faster_is_lower_and_a_label_never_hides_another() -> None:
    plot = draw([(1, 80.0), (2, 60.0)], 5, 10, [("a", "a", 70.0), ("b", "b", 69.9), ("c", "c", 69.8)])
    assert plot is not None
    first, last = plot.improvements[0], plot.improvements[-1]
    assert first[1] < last[1]
    labels = [line.label_y for line in plot.baselines]
    assert all(after - before >= 15 for before, after in itertools.pairwise(labels))


def test_the_curve_ends_at_the_trials_run_and_the_axis_at_those_planned() -> None:
    plot = draw([(1, 80.0)], 30, 60, [])
    assert plot is not None
    assert float(plot.line.split()[-1].split(",")[0]) == (plot.left + plot.right) / 2
    assert (plot.x_ticks[-1].label, plot.x_ticks[-1].at) == ("60", plot.right)


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert nice_ticks(0, 60) == [0, 10, 20, 30, 40, 50, 60]
    assert nice_ticks(47.3, 52.1) == [48, 49, 50, 51, 52]
    assert log_ticks(45, 1200) == [50, 100, 200, 500, 1000]
    assert log_ticks(0.5, 2e6) == [1, 10, 100, 1000, 10000, 100000, 1000000]
