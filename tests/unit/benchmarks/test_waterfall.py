"""Bars of a pair's time, and the patches by which its parts are left out."""

from dataclasses import replace

import pytest

from benchmarks.waterfall.bars import Figures, waterfall_of
from benchmarks.waterfall.guesses import SEATS, Shape, guesses, step_clocks
from benchmarks.waterfall.launches import placement, ways
from benchmarks.waterfall.neighbours import shared_rows
from benchmarks.waterfall.patches import LEFT_OUT, Patch, PatchError
from benchmarks.waterfall.rows import MIDDLE, OTHERS, ROWS, SHARING, WaterfallRow
from tuner.core.legal.legality import check_kind, check_schedule
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.tiling import Tile
from tuner.workers.source.render import render

FIGURES = Figures(
    time_us=100.0,
    launches_us=3.0,
    epilogue_us=4.0,
    clock_mhz=1000.0,
    counted_clock_mhz=500.0,
    active_cycles=48_500.0,
    most_tensor_cycles=40_000.0,
    mean_tensor_cycles=30_000.0,
    needed_share=0.75,
)


def test_bars_stand_one_on_the_other_up_to_the_measured_time() -> None:
    bars = waterfall_of(FIGURES)
    assert (bars.main_loop_us, bars.unneeded_rows_us, bars.tail_us) == (22.5, 7.5, 10.0)
    assert (bars.l2_traffic_us, bars.epilogue_us, bars.launch_us) == (53.0, 4.0, 3.0)
    assert bars.sum_us == 100.0
    assert bars.holds(100.0)


def test_bars_that_leave_a_tenth_of_the_time_unexplained_do_not_hold() -> None:
    bars = waterfall_of(replace(FIGURES, active_cycles=43_500.0))
    assert bars.off_by(100.0) == pytest.approx(-0.1)
    assert not bars.holds(100.0)


@pytest.mark.parametrize(
    "wrong",
    [{"needed_share": 1.5}, {"needed_share": 0.0}, {"mean_tensor_cycles": 45_000.0}, {"active_cycles": 35_000.0}],
)
def test_figures_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"at most 1|this is their order"):
        waterfall_of(replace(FIGURES, **wrong))


def every_row() -> list[WaterfallRow]:
    others = [replace(row, schedule=one) for row in ROWS for one in OTHERS.get(row.name, ())]
    clusters = [replace(row, schedule=one) for row, found in SHARING.items() for one in found]
    return [*ROWS, *others, *SHARING, *clusters, *MIDDLE[-5:]]


@pytest.mark.parametrize("row", every_row(), ids=lambda row: f"{row.name}: {row.schedule}")
def test_each_schedule_is_legal_and_every_patch_fits_its_source(row: WaterfallRow) -> None:
    gpu = parse_target("h200").gpu
    check_kind(row.workload, gpu, row.plan_kind, row.schedule)
    check_schedule(row.workload, gpu, row.schedule)
    source = render(row.workload, row.schedule.tiling)
    asked = [*LEFT_OUT.values(), *(build.patches for build in ways(row, range(132)).values())]
    for patches in asked:
        patched = source
        for patch in patches:
            changed = patch.applied(patched)
            assert changed != patched
            patched = changed


def test_a_patch_that_does_not_fit_says_so() -> None:
    with pytest.raises(PatchError, match="the kernel was changed"):
        Patch(before="no such line", after="").applied("source")


def test_a_plain_launch_says_which_queue_each_sm_had() -> None:
    sms = [131 - sm for sm in range(132)]
    assert placement([[0, 0, 0, 0, sm, 0] for sm in sms]) == sms
    assert placement([[0, 0, 0, 0, sm, 0] for sm in sms[1:]]) == []


def test_a_step_costs_the_larger_one_of_tensor_cores_and_shared_memory() -> None:
    gated = ROWS[0].workload.tile_ops[0]
    few = Shape(tile=Tile(m=64, n=88, k=64), swap_ab=False, warpgroups=1)
    assert step_clocks(gated, few)[:2] == (
        88.0,
        120.0,
    )  # 176 rows of weights; 240 are read and 240 written, 32 bytes each
    swapped = Shape(tile=Tile(m=192, n=128, k=64), swap_ab=True, warpgroups=2)
    assert step_clocks(gated, swapped)[:2] == (384.0, 368.0)


def test_the_arithmetic_names_the_tiles_that_a_search_of_300_trials_found() -> None:
    (us, best), *_ = guesses(ROWS[0].workload, parse_target("h200").gpu, 1)
    assert best.tiling.tiles == ROWS[0].schedule.tiling.tiles
    assert us == pytest.approx(64.7, abs=0.1)


def test_guesses_of_so_many_tiles_of_rows_leave_the_sms_free_that_hold_no_neighbours() -> None:
    found = guesses(ROWS[0].workload, parse_target("h200").gpu, 4, row_tiles=3)
    assert {-(-192 // schedule.tiling.tiles[0].m) for _, schedule in found} == {3}
    assert {schedule.ordering.reserved_sms for _, schedule in found} == {132 - SEATS[3]}


def test_kept_winners_with_neighbours_have_tiles_of_fewer_rows_than_the_matrix() -> None:
    rows = shared_rows()
    assert len(rows) >= 10
    assert all(tile.m < row.workload.tile_ops[0].m for row in rows for tile in row.schedule.tiling.tiles)
