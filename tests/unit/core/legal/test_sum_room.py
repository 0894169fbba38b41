"""Room for the sums that CTAs exchange when they split a tile's K."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200, ordering, wgmma
from tuner.core.legal.legality import tiling_problem
from tuner.core.legal.sum_room import with_least_room, with_most_room
from tuner.core.legal.wgmma import sum_exchanges
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.space import space_of
from tuner.ops.gemm.pairs import ffn_pair

PAIR = ffn_pair(m=128, d_in=8192, d_hidden=3584, d_out=8192, gated=True)
#: Its rings leave 11 KB.
SHARING = wgmma((128, 56, 64), (128, 128, 64), num_stages=6, input_stages=6, num_warps=8, cluster_k=2)
ALONE = replace(SHARING, cluster_k=1)


def exchanges(tiling: Tiling) -> tuple[int, ...]:
    return tuple(sum_exchanges(op, tile, tiling)[0] for op, tile in zip(PAIR.tile_ops, tiling.tiles, strict=True))


def test_with_more_room_sums_come_in_fewer_exchanges() -> None:
    assert exchanges(SHARING) == (3, 3)
    assert exchanges(replace(SHARING, sum_kib=32)) == (2, 2)
    assert tiling_problem(PAIR, H200, replace(SHARING, sum_kib=32)) is None


@pytest.mark.parametrize(
    ("tiling", "why"),
    [
        (replace(SHARING, sum_kib=40), "sum_kib 40: use one of 24, 32, 48, 64"),
        (replace(SHARING, sum_kib=48), "sum_kib 48: a smaller value gives them the same space, use 32"),
        (replace(ALONE, sum_kib=32), "sum_kib 32: no CTAs split a tile's K, use 24"),
        (replace(SHARING, num_stages=7, input_stages=7), "the stages take "),
    ],
)
def test_room_that_is_not_there_or_gains_nothing_is_refused(tiling: Tiling, why: str) -> None:
    assert why in str(tiling_problem(PAIR, H200, tiling))


def test_the_most_room_is_what_the_rings_leave() -> None:
    assert with_most_room(PAIR, H200, SHARING).sum_kib == 32
    deeper = replace(SHARING, num_stages=6, input_stages=7)
    assert with_most_room(PAIR, H200, deeper) == deeper
    assert with_most_room(PAIR, H200, ALONE) == ALONE
    assert with_least_room(PAIR, replace(SHARING, sum_kib=64)).sum_kib == 32
    assert with_least_room(PAIR, replace(ALONE, sum_kib=64)) == ALONE


def test_a_search_tries_it_where_ctas_share_k_and_forgets_it_where_none_do() -> None:
    space = space_of(PAIR, H200)

    def near(tiling: Tiling) -> list[Tiling]:
        return [one.tiling for one in space.neighbours(Schedule.of(tiling=tiling, ordering=ordering()))]

    assert replace(SHARING, sum_kib=32) in near(SHARING)
    around = near(replace(SHARING, sum_kib=32))
    assert SHARING in around
    assert {one.sum_kib for one in around if one.cluster_k == 1} == {24}
