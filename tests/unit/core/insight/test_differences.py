"""Documents side by side: every leaf has its row, and only unequal ones are marked."""

from __future__ import annotations

from tuner.core.insight.differences import side_by_side


def test_leaves_of_both_are_listed_once_and_marked_where_they_differ() -> None:
    first = {"engine": "mma", "tiles": [{"m": 16}, {"m": 32}], "window": None}
    second = {"engine": "mma", "tiles": [{"m": 16}, {"m": 64}], "swap_ab": True}
    rows = {row.name: (row.first, row.second, row.differs) for row in side_by_side(first, second)}
    assert rows == {
        "engine": ("mma", "mma", False),
        "tiles.0.m": (16, 16, False),
        "tiles.1.m": (32, 64, True),
        "swap_ab": (None, True, True),
    }
