from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import rasters
from tuner.core.plan.order.rasters import hilbert, plain_name, raster_order
from tuner.core.schedule.ordering import Raster, RasterKind
from tuner.errors import InvalidInput


@pytest.mark.parametrize("num_rows", range(1, 25))
def test_a_hilbert_curve_visits_each_tile_of_any_rectangle_once_in_adjacent_steps(num_rows: int) -> None:
    for num_cols in range(1, 41):
        path = list(hilbert(num_rows, num_cols))
        assert path[0] == (0, 0)
        assert sorted(path) == list(product(range(num_rows), range(num_cols)))
        assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in pairwise(path))


def test_morton_is_the_z_of_zs() -> None:
    rows, cols = raster_order(Raster(kind=RasterKind.MORTON), 4, 4)
    z = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(zip(rows.tolist(), cols.tolist(), strict=True)) == [(2 * a + c, 2 * b + d) for a, b in z for c, d in z]


def names(num_rows: int, num_cols: int) -> list[Raster]:
    """Every raster that is distinct on such a grid, the simplest first."""
    widths = tuple(range(1, max(num_rows, num_cols) + 1))
    of_kind = {
        RasterKind.SNAKE: widths,
        RasterKind.GROUPED: widths[1:],
        RasterKind.PANEL: widths[1:],
        RasterKind.EXACT: (),
    }
    return [Raster(kind=kind, width=width) for kind in RasterKind for width in of_kind.get(kind, (1,))]


@pytest.mark.parametrize(("num_rows", "num_cols"), [*product(range(1, 7), range(1, 9)), (5, 17), (17, 5), (6, 31)])
def test_the_plain_name_is_the_first_of_those_with_the_same_walk(num_rows: int, num_cols: int) -> None:
    first: dict[bytes, Raster] = {}
    for raster in names(num_rows, num_cols):
        key = np.stack(raster_order(raster, num_rows, num_cols)).tobytes()
        plain = first.setdefault(key, raster)
        assert plain_name(raster, frozenset({(num_rows, num_cols)})) == plain


@given(rasters, rasters, st.frozensets(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=3))
def test_over_several_shapes_rasters_share_a_name_exactly_if_they_walk_all_alike(
    a: Raster, b: Raster, shapes: frozenset[tuple[int, int]]
) -> None:
    alike = all(np.array_equal(raster_order(a, *shape), raster_order(b, *shape)) for shape in shapes)
    assert (plain_name(a, shapes) == plain_name(b, shapes)) == alike


def test_an_exact_path_of_a_large_grid_is_refused_with_the_limit_and_the_alternative() -> None:
    with pytest.raises(InvalidInput, match=r"1000 x 1000 tiles take too long; the limit is 4 x 4; take .*hilbert"):
        raster_order(Raster(kind=RasterKind.EXACT, width=4), 1000, 1000)
