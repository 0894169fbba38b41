from __future__ import annotations

from itertools import islice, permutations, product

import pytest

from tests.support.lanes import each_value_once, soaked
from tuner.core.plan.order.exact_rasters import Path, best_path, exact_orders
from tuner.core.plan.order.panel_cache import traffic
from tuner.errors import InvalidInput


def renamed(path: Path) -> Path:
    """The path with rows and columns numbered in the order of their first visit."""
    rows: dict[int, int] = {}
    cols: dict[int, int] = {}
    return tuple((rows.setdefault(row, len(rows)), cols.setdefault(col, len(cols))) for row, col in path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "cache"), each_value_once([(1, 4), (2, 2), (2, 3), (3, 2), (2, 4)], [2, 3, 4, 5, 6]), ids=str
)
def test_the_answer_is_that_of_trying_every_path(grid: tuple[int, int], cache: int) -> None:
    num_rows, num_cols = grid
    first, *others = product(range(num_rows), range(num_cols))
    costs = {(first, *rest): traffic((first, *rest), cache) for rest in permutations(others)}
    least = min(costs.values())
    wanted = {renamed(path) for path, cost in costs.items() if cost == least}
    orders = exact_orders(num_rows, num_cols, cache)
    assert orders.least_panels == least
    assert orders.num_paths == len(wanted)
    listed = list(orders.paths())
    assert listed == sorted(wanted)
    assert best_path(num_rows, num_cols, cache) == listed[0]


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "least", "num_paths"), [*soaked((2, 17, 38_880)), (4, 10, 2_816), (5, 9, 3_648)])
def test_four_by_four_takes_a_moment(cache: int, least: int, num_paths: int) -> None:
    orders = exact_orders(4, 4, cache)
    assert (orders.least_panels, orders.num_paths) == (least, num_paths)
    assert all(traffic(path, cache) == least for path in islice(orders.paths(), 50))


def test_a_cache_that_holds_all_panels_brings_each_in_once_whatever_the_path() -> None:
    orders = exact_orders(4, 4, 8)
    assert orders.least_panels == 8
    assert orders.num_paths * 36 == 1_307_674_368_000  # 15!
    assert best_path(4, 4, 8) == tuple(product(range(4), range(4)))


@pytest.mark.parametrize(
    ("grid", "cache", "sentence"),
    [
        ((1000, 1000), 8, "1000 x 1000 tiles take too long; the limit is 4 x 4"),
        ((4, 5), 8, "the limit is 4 x 4; take a corner of the grid, or the hilbert"),
        ((0, 4), 8, "0 x 4 has no tiles"),
        ((3, 3), 1, "1 panels cannot hold the operands of one tile.*use at least 2"),
    ],
)
def test_what_cannot_be_answered_is_refused(grid: tuple[int, int], cache: int, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        exact_orders(*grid, cache)
