"""Rings that let CTAs of the next launch onto the SMs of this one, where launches are short and begin early."""

from __future__ import annotations

from tests.support.cases import H200
from tests.support.convs import conv, workload
from tests.support.spaces import any_space_of
from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.one_line import read_line
from tuner.core.space.space import Space
from tuner.core.space.wgmma_tilings import WgmmaTilings
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.search.guesses.sharing import halved, sharing_sms
from tuner.search.searcher import Searcher

IMAGE = {"images": 1, "height": 14, "width": 14, "channels": 256, "filters": 256}
PAIR = workload(conv("a", **IMAGE), conv("b", "a", **IMAGE))
DEEP = read_line("wgmma 64x32x256+64x32x256 s4 i4 w4 | row+row producer_first row-sync static 1/SM")
TWO_GROUPS = read_line("wgmma 128x32x64+128x32x64 s8 i8 w8 | row+row producer_first row-sync static 1/SM")


def space_of(made: Workload) -> Space:
    space = any_space_of(made, H200)
    assert isinstance(space, Space)
    return space


def test_shorter_rings_are_of_lower_stages_and_two_ctas_fit_on_an_sm() -> None:
    space = space_of(PAIR)
    half = halved(space, DEEP.tiling)
    assert half is not None
    assert [tile.k for tile in half.tiles] == [128, 128]
    assert 2 * (dynamic_smem_bytes(PAIR, half) + SMEM_RESERVED_PER_CTA_BYTES) <= H200.smem_per_sm_bytes
    assert halved(space, half) is None
    assert [one.tiling for one in sharing_sms(space, (), [TWO_GROUPS, DEEP])] == [half]


def test_of_a_long_launch_rings_stay_whole() -> None:
    large = IMAGE | {"images": 256}
    assert sharing_sms(space_of(workload(conv("a", **large), conv("b", "a", **large))), (), [DEEP]) == []


def test_a_search_tries_them_launched_early_once_that_is_faster() -> None:
    searcher, tried = Searcher(space_of(PAIR), seed=0, num_trials=40), list[Candidate]()
    for number in range(16):
        candidate = searcher.ask()
        assert candidate is not None
        time_us = 20.0 - number / 10 - 4 * candidate.plan_kind.is_programmatic
        outcome = Measured(time_us=time_us, library_us=20, speedup=20 / time_us, spread=0, rounds=(), rel_error=0)
        times = {"num_known": number, "started_at": 0, "finished_at": 1}
        searcher.tell(Trial(number=number, candidate=candidate, outcome=outcome, **times))
        tried.append(candidate)
    most_bytes = H200.smem_per_sm_bytes // 2 - SMEM_RESERVED_PER_CTA_BYTES
    early = [one.schedule for one in tried if one.plan_kind.is_programmatic and one.schedule]
    assert any(dynamic_smem_bytes(PAIR, one.tiling) <= most_bytes for one in early)


def test_many_pixels_of_few_channels_have_tiles_of_several_heights() -> None:
    image = {"images": 32, "height": 56, "width": 56, "channels": 64, "filters": 64}
    tilings = WgmmaTilings(workload(conv("a", **image), conv("b", "a", **image)), H200)
    assert {(128, 8, False), (256, 8, True), (256, 8, False)} <= {
        (one.m, one.num_warps, one.swap_ab) for one in tilings.heights
    }


def test_pixels_of_a_batch_are_one_whole_wave_of_tiles() -> None:
    image = {"images": 16, "height": 28, "width": 28, "channels": 512, "filters": 512}
    tilings = WgmmaTilings(workload(conv("a", **image), conv("b", "a", **image)), H200)
    first = tilings.guesses()[0]
    (tile, _) = first.tiles
    assert first.swap_ab
    assert -(-16 * 28 * 28 // tile.m) * -(-512 // tile.n) == H200.num_sms
