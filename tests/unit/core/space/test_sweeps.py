"""Studies of one schedule: one thing varies, all else stays, and all variants are legal and proven."""

from __future__ import annotations

import random

import pytest

from tests.support.lanes import soaked
from tuner.core.model.bounds import reference_us
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.ordering import InterleaveKind, Ordering, Raster, RasterKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.space.sweeps import Sweep, base_of, swept
from tuner.ops.gemm.pairs import ffn_pair

GPU = CATALOGUE["h200"]
WORKLOAD = ffn_pair(m=512, d_in=1024, d_hidden=2048, d_out=1024)


@pytest.fixture(scope="module")
def base() -> Candidate:
    """The schedule to vary."""
    (sampled,) = Space(WORKLOAD, GPU).sample(random.Random(1), 1)
    return fused(sampled.but(ordering=Ordering(rasters=(Raster(), Raster()))))


def varied(one: Candidate, base: Candidate) -> dict[str, str]:
    """The axes of an order that differ from the base's, and the plan kind."""
    assert one.schedule
    assert base.schedule
    own, others = vars(one.schedule.ordering), vars(base.schedule.ordering)
    changed = {name: str(value) for name, value in own.items() if value != others[name]}
    assert one.schedule.tiling == base.schedule.tiling, "the kernel stays"
    return changed | ({"kind": str(one.plan_kind)} if one.plan_kind is not base.plan_kind else {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "axes"),
    [
        *soaked((Sweep.RASTERS, {"rasters"}), (Sweep.MERGES, {"interleave"})),
        (Sweep.SIGNALS, {"granularity", "sync_width", "wait_position"}),
        (Sweep.LAUNCHES, {"kind"}),
        (Sweep.SHARES, {"assignment", "split_tiles"}),
    ],
)
def test_only_what_is_studied_is_varied_and_every_one_is_proven(base: Candidate, sweep: Sweep, axes: set[str]) -> None:
    found = swept(sweep, WORKLOAD, GPU, base)
    assert found[0] is base
    assert len(set(found)) == len(found) >= 3
    for one in found:
        assert varied(one, base).keys() <= axes
        assert plans_for(WORKLOAD, GPU, one)


def test_the_studies_of_the_literature_are_among_them(base: Candidate) -> None:
    found = {sweep: swept(sweep, WORKLOAD, GPU, base) for sweep in Sweep}
    rasters = {one.schedule.ordering.rasters[0].kind for one in found[Sweep.RASTERS] if one.schedule}
    assert rasters >= {RasterKind.ROW, RasterKind.COLUMN, RasterKind.MORTON, RasterKind.HILBERT}
    merges = {one.schedule.ordering.interleave.kind for one in found[Sweep.MERGES] if one.schedule}
    assert merges >= {InterleaveKind.PRODUCER_FIRST, InterleaveKind.BANDS, InterleaveKind.HALF_ROWS}
    assert {one.plan_kind for one in found[Sweep.LAUNCHES]} >= {PlanKind.FUSED, PlanKind.TWO_LAUNCHES}


# In CI, tests/service/client/test_studies.py makes studies.
@pytest.mark.soak
@pytest.mark.parametrize(("m", "width", "depth"), [*soaked((512, 4096, 14336)), (256, 256, 256)])
def test_a_study_that_is_given_no_schedule_finds_one_that_is_near_the_shortest_and_varies(
    m: int, width: int, depth: int
) -> None:
    workload = ffn_pair(m=m, d_in=width, d_hidden=depth, d_out=width)
    own = base_of(Sweep.RASTERS, workload, GPU)
    # For the small pair, the launch and its first tiles take longest.
    assert forecast_us(workload, GPU, own) < max(2 * reference_us(workload, GPU), 15.0)
    rasters = {
        one.schedule.ordering.rasters[0].kind for one in swept(Sweep.RASTERS, workload, GPU, own) if one.schedule
    }
    assert rasters >= {RasterKind.ROW, RasterKind.COLUMN, RasterKind.MORTON, RasterKind.HILBERT}
