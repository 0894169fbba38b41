"""Documents side by side: every leaf has a row, and only differing ones are marked."""

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


def test_a_long_list_is_one_row() -> None:
    order = list(range(400))
    first, second = {"raster": order, "few": [1, 2]}, {"raster": [*order[:-2], 399, 398], "few": [1, 2]}
    raster, *few = side_by_side(first, second)
    assert (raster.name, raster.differs, len(few)) == ("raster", True, 2)
    assert raster.first.startswith("400: 0 1 2 3 4 5 6 7 ..., digest ")
    assert not side_by_side(first, first)[0].differs
    assert not side_by_side(first, {})[0].second
