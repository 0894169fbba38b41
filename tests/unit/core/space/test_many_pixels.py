"""Tiles of many rows and few columns, as in convolutions of several images."""

from __future__ import annotations

from tests.support.cases import H200
from tests.support.convs import conv, pooling, workload
from tuner.core.legal.legality import tiling_problem
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


def test_tiles_that_load_much_are_also_tried_with_two_ctas_that_load_together() -> None:
    """Beside the first guess, the same tiles with the pixels loaded once for two of them; with one column of tiles, the
    filters. Few images load little."""
    many = tilings_of(images=16, height=14, width=14, channels=256, filters=256)
    (plain, together) = many.guesses()[:2]
    assert (plain.cluster_size, together.cluster_n, together.cta_tiles) == (1, 2, plain.tiles)
    assert (together.num_stages, together.input_stages) == (plain.num_stages, plain.input_stages)
    assert together in many.near(plain)
    wide = tilings_of(images=32, height=112, width=112, channels=128, filters=128)
    (plain, together) = wide.guesses()[:2]
    assert (together.cluster_m, together.cta_tiles) == (2, plain.tiles)
    narrow = tilings_of(images=16, height=56, width=56, channels=64, filters=64)
    assert narrow.guesses()[1].cta_tiles != narrow.guesses()[0].tiles, "filters are an eighth of what is loaded"
    few = tilings_of(images=1, height=14, width=14, channels=256, filters=256)
    assert not any(one.cluster_n > 1 for one in few.guesses())


def test_few_channels_and_their_maximum_are_a_wave_of_tiles_each() -> None:
    """Only `mma` computes them, and heights that all ops share do not suit both."""
    image = {"images": 1, "height": 224, "width": 224, "channels": 4, "filters": 64}
    made = workload(
        conv("a", **image, kernel=7, padding=3, stride=2), pooling("b", "a", images=1, height=112, width=112, channels=64)
    )
    space = Space(made, H200)
    first = space.guesses[0]
    for op, tile in zip(made.tile_ops, first.tiles, strict=True):
        rows, columns = op.tile_grid(tile.m, tile.n)
        assert 0.95 * H200.num_sms <= rows * columns <= H200.num_sms
    assert all(tiling_problem(made, H200, one) is None for one in space.guesses)
    assert not {one.engine for one in Space(workload(conv("a"), conv("b", "a", channels=24)), H200).guesses}
