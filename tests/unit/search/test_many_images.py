"""First trials of pairs of convolutions of 16 images: what was fastest on a card is among them."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.support.cases import H200
from tests.support.convs import conv, workload
from tests.support.spaces import space_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.one_line import read_line
from tuner.core.trial.job import Objective, Trial, default_regime
from tuner.core.trial.outcome import Measured
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search.guesses.priors import Asked, choose_priors
from tuner.search.guesses.seeds import NUM_GUESSES, seed_schedules
from tuner.search.searcher import Searcher
from tuner.winners import ShippedWinners

#: Of tiles of 96x64: equal rings, and half as many steps (docs/findings/conv-many-images.md).
EQUAL, DEEP = "wgmma 96x64x64+96x64x64 s11 i11 w4 swap-ab", "wgmma 96x64x128+96x64x128 s5 i5 w4 swap-ab"
WIDE = "wgmma 96x128x64+96x128x64 s8 i8 w4 swap-ab"
WIDE_DEEP = "wgmma 96x128x128+96x128x128 s4 i4 w4 swap-ab"
ORDER = "row+row producer_first row-sync static 1/SM"


def two_convs(size: int, channels: int, filters: int, kernel: int = 3) -> Workload:
    image = {"images": 16, "height": size, "width": size, "filters": filters, "bias": True, "activation": "relu"}
    first = conv("conv1", **image, channels=channels) | {"kernel": kernel, "padding": kernel // 2}
    return workload(first, conv("conv2", "conv1", **image, channels=filters))


@pytest.mark.parametrize(
    ("pair", "num_guesses", "fastest"),
    [
        (two_convs(14, 256, 256), 2, (EQUAL, DEEP)),
        (two_convs(14, 1024, 256, kernel=1), 2, (EQUAL, DEEP)),
        (two_convs(28, 128, 128), 4, (WIDE_DEEP, WIDE)),
    ],
    ids=["r38-3x3-3x3-256", "r50-s3-1x1-3x3", "r38-3x3-3x3-128"],
)
def test_the_first_guesses_of_many_images_are_those_that_were_fastest(
    pair: Workload, num_guesses: int, fastest: tuple[str, ...]
) -> None:
    """Forecasts within 3 % of each other do not replace the rings or the stages of a guess."""
    guessed = [one.tiling for one in islice(seed_schedules(space_of(pair, H200), tuple), num_guesses)]
    tilings = [read_line(f"{tiling} | {ORDER}").tiling for tiling in fastest]
    assert [one for one in guessed if one in tilings] == tilings


def test_the_first_guesses_of_many_images_are_tried_after_shipped_winners() -> None:
    pair = two_convs(14, 256, 256)
    here, objective = space_of(pair, H200), Objective(regime=default_regime(pair))
    asked = Asked(space=here, objective=objective, kernel_version="0123456789ab", num_trials=24)
    priors = choose_priors(asked, ShippedWinners().of("h200"))
    assert len(priors) == 6
    searcher = Searcher(here, seed=0, num_trials=24, priors=[one.candidate for one in priors])
    tried = list[str]()
    for number in range(16):
        candidate = searcher.ask()
        assert candidate is not None
        tried.append(str(candidate.schedule).partition(" |")[0])
        outcome = Measured(time_us=25, library_us=23, speedup=23 / 25, spread=0, rounds=(), rel_error=0)
        trial = Trial(
            number=number, candidate=candidate, outcome=outcome, num_known=number, started_at=0, finished_at=1
        )
        searcher.tell(trial)
    assert {EQUAL, DEEP} <= set(tried)


def test_high_tiles_of_a_chain_keep_equal_rings_and_low_ones_have_those_of_the_shortest_forecast() -> None:
    chain = two_convs(14, 256, 256)
    here = space_of(chain, H200)
    high = read_line(f"{EQUAL} | {ORDER}").tiling
    uneven = read_line(f"wgmma 96x64x64+96x64x64 s16 i4 w4 swap-ab | {ORDER}").tiling
    deep_first = read_line(f"wgmma 96x64x128+96x64x64 s5 i5 w4 swap-ab | {ORDER}").tiling
    assert here.with_full_rings(high) == []
    assert here.with_full_rings(uneven)
    assert here.with_full_rings(deep_first)
    assert [(one.num_stages, one.input_stages) for one in here.twice_as_deep(high)] == [(5, 5)]
    assert {one.input_stages for one in here.twice_as_deep(uneven)} == {4, 5, 6, 8}
    pair = space_of(ffn_pair(m=256, d_in=1024, d_hidden=4096, d_out=1024), H200)
    guessed = [one.tiling for one in islice(seed_schedules(pair, tuple), NUM_GUESSES)]
    assert guessed == pair.guesses[:NUM_GUESSES]
