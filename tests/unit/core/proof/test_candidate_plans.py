from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200, chain_of_three, ordering, tiling
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import IllegalSchedule

CHAIN = chain_of_three(64, (64, 64, 96, 64))
SCHEDULE = Schedule(tiling=tiling(*[(16, 32)] * 3), ordering=ordering(3, bands=2))


def test_the_library_launches_no_plan() -> None:
    assert plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.LIBRARY)) == ()


def test_fused_is_one_plan_of_all_ops_and_two_launches_one_per_op() -> None:
    (fused,) = plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.FUSED, schedule=SCHEDULE))
    assert fused.graph.op_indices == (0, 1, 2)
    assert fused.plan.num_signals > 0
    apart = plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=SCHEDULE))
    assert [plan.graph.op_indices for plan in apart] == [(0,), (1,), (2,)]
    assert all(plan.plan.num_signals == len(plan.plan.waits) == 0 for plan in apart)
    assert sum(plan.plan.num_tasks for plan in apart) == fused.plan.num_tasks


def test_a_programmatic_kind_has_the_plans_of_the_plain_one() -> None:
    for kind in (PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL):
        kinds = (kind.launched_plainly, kind)
        plain, pdl = (plans_for(CHAIN, H200, Candidate(plan_kind=one, schedule=SCHEDULE)) for one in kinds)
        assert [plan.words.tolist() for plan in plain] == [plan.words.tolist() for plan in pdl]


def test_programmatic_launches_need_compute_capability_9() -> None:
    for kind in (PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL):
        with pytest.raises(IllegalSchedule, match=r"A100-SXM4-80GB has compute capability 8\.0: programmatic"):
            plans_for(CHAIN, CATALOGUE["a100"], Candidate(plan_kind=kind, schedule=SCHEDULE))


def test_a_plan_of_ours_needs_a_legal_schedule() -> None:
    with pytest.raises(ValueError, match="needs a schedule"):
        plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.FUSED))
    crooked = replace(SCHEDULE, tiling=replace(SCHEDULE.tiling, num_stages=1))
    with pytest.raises(IllegalSchedule, match="1 stages"):
        plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=crooked))
