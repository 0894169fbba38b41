"""Tiles of many rows and few columns, as in convolutions of several images."""

from __future__ import annotations

from tests.support.cases import H200
from tests.support.convs import conv, pooling, workload
from tuner.core.legal.legality import kind_problem, tiling_problem
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.space.wgmma_tilings import WgmmaTilings


def tilings_of(**image: int) -> WgmmaTilings:
    return WgmmaTilings(workload(conv("a", **image), conv("b", "a", **image)), H200)


def test_many_pixels_of_few_channels_have_tiles_of_several_heights() -> None:
    tilings = tilings_of(images=32, height=56, width=56, channels=64, filters=64)
    heights = {(one.m, one.num_warps, one.swap_ab) for one in tilings.heights}
    assert {(128, 8, False), (256, 8, True), (256, 8, False)} <= heights


def test_pixels_of_a_batch_are_one_whole_wave_of_tiles() -> None:
    first = tilings_of(images=16, height=28, width=28, channels=512, filters=512).guesses()[0]
    (tile, _) = first.tiles
    assert first.swap_ab
    assert -(-16 * 28 * 28 // tile.m) * -(-512 // tile.n) == H200.num_sms


def test_high_tiles_are_also_tried_with_stages_twice_as_deep() -> None:
    """Beside the first guess, the same tiles with half as many steps, if the ring still holds enough of them."""
    many = tilings_of(images=16, height=14, width=14, channels=256, filters=256)
    (plain, deep) = many.guesses()[:2]
    assert [(tile.m, tile.n, tile.k) for tile in deep.tiles] == [(tile.m, tile.n, 2 * tile.k) for tile in plain.tiles]
    assert min(deep.num_stages, deep.input_stages) >= 4
    wide = tilings_of(images=32, height=112, width=112, channels=128, filters=128)
    assert not any(tile.k > 64 for one in wide.guesses()[:2] for tile in one.tiles)


def test_neighbours_of_tiles_that_load_much_load_together() -> None:
    """The same tiles with the pixels loaded once for two of them; with one column of tiles, the filters. With few
    filters, pixels are nearly all that is loaded, and few images load little."""
    many = tilings_of(images=16, height=14, width=14, channels=256, filters=256)
    plain = many.guesses()[0]
    (together,) = (one for one in many.near(plain) if one.cluster_n > 1)
    assert (together.cluster_n, together.cta_tiles) == (2, plain.tiles)
    assert (together.num_stages, together.input_stages) == (plain.num_stages, plain.input_stages)
    wide = tilings_of(images=32, height=112, width=112, channels=128, filters=128)
    plain = wide.guesses()[0]
    assert plain.tiles in [one.cta_tiles for one in wide.near(plain) if one.cluster_m == 2]
    for other in ({"images": 16, "height": 56, "channels": 64}, {"images": 1, "height": 14, "channels": 256}):
        tilings = tilings_of(**other, width=other["height"], filters=other["channels"])
        first = tilings.guesses()[0]
        assert not any(
            one.cluster_m * one.cluster_n > 1 and one.cta_tiles == first.tiles for one in tilings.near(first)
        )


def test_few_channels_and_their_maximum_are_a_wave_of_tiles_each() -> None:
    """Only `mma` computes them, and heights that all ops share do not suit both."""
    image = {"images": 1, "height": 224, "width": 224, "channels": 4, "filters": 64}
    made = workload(
        conv("a", **image, kernel=7, padding=3, stride=2),
        pooling("b", "a", images=1, height=112, width=112, channels=64),
    )
    space = Space(made, H200)
    first = space.guesses[0]
    for op, tile in zip(made.tile_ops, first.tiles, strict=True):
        rows, columns = op.tile_grid(tile.m, tile.n)
        assert 0.95 * H200.num_sms <= rows * columns <= H200.num_sms
    assert all(tiling_problem(made, H200, one) is None for one in space.guesses)
    assert kind_problem(made, H200, PlanKind.TWO_LAUNCHES_PDL) is None
    assert kind_problem(made, H200, PlanKind.TWO_STREAMS) == "b is no product, and its programs run on one stream"
    assert not {one.engine for one in Space(workload(conv("a"), conv("b", "a", channels=24)), H200).guesses}
