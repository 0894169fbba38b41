"""Bars of a pair's time, and the patches that leave out its parts."""

from dataclasses import replace

import pytest

from benchmarks.waterfall.patches import LEFT_OUT, Patch, PatchError
from benchmarks.waterfall.rows import OTHERS, ROWS, WaterfallRow
from tuner.core.insight.waterfall import Figures, waterfall_of
from tuner.core.legal.legality import check_kind, check_schedule
from tuner.core.problem.gpu import parse_target
from tuner.workers.source.render import render

FIGURES = Figures(
    time_us=100.0,
    launches_us=3.0,
    epilogue_us=4.0,
    clock_mhz=1000.0,
    counted_clock_mhz=500.0,
    active_cycles=68_500.0,
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
    bars = waterfall_of(replace(FIGURES, active_cycles=63_500.0))
    assert bars.off_by(100.0) == pytest.approx(-0.1)
    assert not bars.holds(100.0)


@pytest.mark.parametrize(
    "wrong",
    [{"needed_share": 1.5}, {"needed_share": 0.0}, {"mean_tensor_cycles": 45_000.0}, {"active_cycles": 35_000.0}],
)
def test_figures_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"at most 1|must ascend in this order"):
        waterfall_of(replace(FIGURES, **wrong))


def every_row() -> list[WaterfallRow]:
    others = [replace(row, schedule=one) for row in ROWS for one in OTHERS.get(row.name, ())]
    return [*ROWS, *others]


@pytest.mark.parametrize("row", every_row(), ids=lambda row: f"{row.name}: {row.schedule}")
def test_each_schedule_is_legal_and_every_patch_fits_its_source(row: WaterfallRow) -> None:
    gpu = parse_target("h200").gpu
    check_kind(row.workload, gpu, row.plan_kind, row.schedule)
    check_schedule(row.workload, gpu, row.schedule)
    source = render(row.workload, row.schedule.tiling)
    for patches in LEFT_OUT.values():
        patched = source
        for patch in patches:
            changed = patch.applied(patched)
            assert changed != patched
            patched = changed


def test_a_patch_that_does_not_fit_says_so() -> None:
    with pytest.raises(PatchError, match="update the patch for the changed kernel"):
        Patch(before="no such line", after="").applied("source")
