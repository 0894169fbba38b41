"""A plan uses all clusters that a GPU holds, and has a fallback for GPUs of its model that hold fewer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.support.packs import IN_FOURS, LIVE, WIDE
from tuner.core.legal.legality import check_schedule, is_legal
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import fallback_for, plans_for
from tuner.core.proof.verify import recheck
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair

H200 = CATALOGUE["h200"]
KINDS = [kind for kind in PlanKind if kind.is_ours and kind.is_for(2)]


def candidate(kind: PlanKind = PlanKind.FUSED, tiling: Tiling = IN_FOURS, **chosen: object) -> Candidate:
    ordering = Ordering(rasters=(Raster(), Raster()), **({"assignment": Assignment.STATIC} | chosen))  # type: ignore[arg-type]
    return Candidate(plan_kind=kind, schedule=Schedule.of(tiling=tiling, ordering=ordering))


def grids(gpu: Gpu, one: Candidate, workload: Workload = WIDE) -> tuple[list[int], list[int]]:
    """The grids of the plans and of their fallback."""
    plans = plans_for(workload, gpu, one)
    fallback = fallback_for(one, plans)
    for plan in fallback:
        assert (plan.gpu.num_clusters(4), plan.resources) == (24, plans[0].resources)
        recheck(plan, plan.resources)
    return [plan.plan.num_ctas for plan in plans], [plan.plan.num_ctas for plan in fallback]


@pytest.mark.parametrize(("kind", "assignment"), [*product(KINDS, (Assignment.STATIC, Assignment.TICKET))])
def test_plans_that_need_all_of_their_ctas_have_a_fallback_and_no_others(
    kind: PlanKind, assignment: Assignment
) -> None:
    if kind.is_side_by_side and not assignment.is_static:
        return
    own, fallback = grids(LIVE, candidate(kind, assignment=assignment))
    assert set(own) == {30}
    assert fallback == ([24] if kind.is_fused and assignment.is_static else [])


def test_a_model_a_card_that_holds_no_more_and_a_grid_that_is_small_enough_have_none() -> None:
    assert grids(H200, candidate()) == ([24], [])
    assert grids(replace(LIVE, live_clusters=((4, 24),)), candidate()) == ([24], [])
    assert grids(replace(LIVE, live_clusters=((4, 22),)), candidate()) == ([22], [])
    assert grids(LIVE, candidate(reserved_sms=36 + 4)) == ([23], [])


def test_reserved_sms_are_those_beside_the_clusters_that_are_held() -> None:
    assert grids(LIVE, candidate(reserved_sms=16)) == ([29], [24])
    with pytest.raises(IllegalSchedule, match=r"30 clusters of 4 CTAs .*: use 1 per SM less 0"):
        check_schedule(WIDE, LIVE, candidate(reserved_sms=12).schedule)


def test_what_a_card_of_fewer_clusters_cannot_share_so_is_refused_on_all() -> None:
    """48 tiles leave a last wave to split on 30 clusters, but none on 24."""
    workload = ffn_pair(m=160, d_in=64, d_hidden=1536, d_out=1536)
    one = candidate(tiling=replace(IN_FOURS, split_k=(1, 4)), split_tiles=SplitTiles.TAIL).schedule
    assert one is not None
    with pytest.raises(IllegalSchedule, match=r"H200 cards hold 24 clusters of 4, not 30: the last wave on 24"):
        check_schedule(workload, LIVE, one)
    assert is_legal(workload, LIVE, candidate(tiling=replace(IN_FOURS, split_k=(1, 4))).schedule or one)
