from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.between import between
from tests.support.cases import H200, chain_of_three, decoder_block, ordering, tiling
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import check_launches, launches_of, plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import CoverageError, IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair

CHAIN = chain_of_three(64, (64, 64, 96, 64))
SCHEDULE = Schedule.of(tiling=tiling(*[(16, 32)] * 3), ordering=ordering(3, bands=2))


def test_the_library_launches_no_plan() -> None:
    assert plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.LIBRARY)) == ()


def test_fused_is_one_plan_of_all_ops_and_n_launches_one_per_op() -> None:
    (fused,) = plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.FUSED, schedule=SCHEDULE))
    assert fused.graph.op_indices == (0, 1, 2)
    assert fused.plan.num_signals > 0
    apart = plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.N_LAUNCHES, schedule=SCHEDULE))
    assert [plan.graph.op_indices for plan in apart] == [(0,), (1,), (2,)]
    assert all(plan.plan.num_signals == len(plan.plan.waits) == 0 for plan in apart)
    assert sum(plan.plan.num_tasks for plan in apart) == fused.plan.num_tasks


def test_a_programmatic_kind_has_the_plans_of_the_plain_one() -> None:
    for kind in (PlanKind.FUSED_PDL, PlanKind.N_LAUNCHES_PDL):
        kinds = (kind.launched_plainly, kind)
        plain, pdl = (plans_for(CHAIN, H200, Candidate(plan_kind=one, schedule=SCHEDULE)) for one in kinds)
        assert [plan.words.tolist() for plan in plain] == [plan.words.tolist() for plan in pdl]


def test_programmatic_launches_need_compute_capability_9() -> None:
    for kind in (PlanKind.FUSED_PDL, PlanKind.N_LAUNCHES_PDL):
        with pytest.raises(IllegalSchedule, match=r"A100-SXM4-80GB has compute capability 8\.0: programmatic"):
            plans_for(CHAIN, CATALOGUE["a100"], Candidate(plan_kind=kind, schedule=SCHEDULE))


def test_a_plan_of_ours_needs_a_legal_schedule() -> None:
    with pytest.raises(ValueError, match="needs a schedule"):
        plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.FUSED))
    crooked = SCHEDULE.but(tiling=replace(SCHEDULE.tiling, num_stages=1))
    with pytest.raises(IllegalSchedule, match="1 stages"):
        plans_for(CHAIN, H200, Candidate(plan_kind=PlanKind.N_LAUNCHES, schedule=crooked))


BLOCK = decoder_block(16, 64, 64, 64)
IN_RUNS = Schedule.of(tiling=tiling(*[(16, 32)] * 4), ordering=ordering(4, run_starts=(1, 3)))


def test_a_chain_is_launched_run_by_run() -> None:
    plans = plans_for(BLOCK, H200, Candidate(plan_kind=PlanKind.RUNS, schedule=IN_RUNS))
    assert [plan.graph.op_indices for plan in plans] == [(0,), (1, 2), (3,)]
    assert [plan.plan.num_signals > 0 for plan in plans] == [False, True, False]
    assert Schedule.from_json(IN_RUNS.to_json()) == IN_RUNS
    assert "run_starts" not in SCHEDULE.to_json()["ordering"]


@pytest.mark.parametrize(
    ("kind", "run_starts", "problem"),
    [
        (PlanKind.RUNS, (), r"one run of all ops is a single launch: use fused_pdl"),
        (PlanKind.RUNS, (1, 2, 3), r"a run for each op is one launch per op: use n_launches_pdl"),
        (PlanKind.RUNS, (3, 1), r"runs that begin at \(3, 1\): use some of ops 1 to 3, ascending"),
        (PlanKind.RUNS, (0, 2), r"use some of ops 1 to 3"),
        (PlanKind.FUSED, (2,), r"only the kind runs has them; leave them out"),
        (PlanKind.TWO_LAUNCHES, (), r"for 4 ops: use one of n_launches, n_launches_pdl, runs, fused, fused_pdl"),
    ],
)
def test_runs_that_are_none_are_refused_with_the_kind_to_use(
    kind: PlanKind, run_starts: tuple[int, ...], problem: str
) -> None:
    schedule = IN_RUNS.but(ordering=replace(IN_RUNS.ordering, run_starts=run_starts))
    with pytest.raises(IllegalSchedule, match=problem):
        plans_for(BLOCK, H200, Candidate(plan_kind=kind, schedule=schedule))


def test_a_pair_is_not_launched_as_a_longer_chain() -> None:
    pair = ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64)
    schedule = Schedule.of(tiling=tiling(*[(16, 32)] * 2), ordering=ordering(2))
    with pytest.raises(IllegalSchedule, match="for 2 ops: use one of two_launches, two_launches_pdl, two_streams"):
        plans_for(pair, H200, Candidate(plan_kind=PlanKind.N_LAUNCHES, schedule=schedule))


def test_launches_compute_each_op_once_and_read_nothing_of_later_ones() -> None:
    check_launches(BLOCK, [(0,), (1, 2), (3,)])
    with pytest.raises(CoverageError, match="an op is computed by two launches: up: launches 0 and 1"):
        check_launches(BLOCK, [(0, 1), (1, 2), (3,)])
    with pytest.raises(CoverageError, match="an op is computed by no launch: down"):
        check_launches(BLOCK, [(0, 1), (3,)])
    with pytest.raises(CoverageError, match="a launch reads what a later one writes: up, in launch 0, reads o"):
        check_launches(BLOCK, [(1,), (0,), (2, 3)])


def test_an_attention_between_products_is_launched_between_them() -> None:
    pair, layer = between(), between(num_behind=3)
    orders = {
        (pair, PlanKind.N_LAUNCHES, ()): ((0,), (1,), (2,)),
        (layer, PlanKind.N_LAUNCHES_PDL, ()): ((0,), (1,), (2,), (3,), (4,)),
        (layer, PlanKind.RUNS, (1,)): ((0,), (1,), (2, 3, 4)),
        (layer, PlanKind.RUNS, (1, 3)): ((0,), (1,), (2, 3), (4,)),
        (between(num_behind=0), PlanKind.TWO_LAUNCHES, ()): ((0,), (1,)),
    }
    for (workload, kind, starts), launches in orders.items():
        num_ops = len(workload.tile_ops)
        schedule = Schedule.of(tiling=tiling(*[(16, 32)] * num_ops), ordering=ordering(num_ops, run_starts=starts))
        assert launches_of(workload, Candidate(plan_kind=kind, schedule=schedule)) == launches
        check_launches(workload, launches)


@pytest.mark.parametrize(
    ("launches", "fault", "who"),
    [
        (
            ((1,), (0,), (2,)),
            "a launch reads what a later one writes",
            "attention, in launch 0, reads qkv, written in launch 1",
        ),
        (((0,), (2,), (1,)), "a launch reads what a later one writes", "o_proj, in launch 1, reads attention"),
        (((2,), (0,), (1,)), "a launch reads what a later one writes", "o_proj, in launch 0, reads attention"),
        (((0, 2), (1,)), "a launch spans a launch op", "launch 0: qkv and o_proj"),
        (((1,), (0, 2)), "a launch spans a launch op", "launch 1: qkv and o_proj"),
        (((0, 1), (2,)), "a launch op shares a launch", "launch 0: qkv and attention"),
        (((0,), (1, 2)), "a launch op shares a launch", "launch 1: attention and o_proj"),
        (((0, 1, 2),), "a launch op shares a launch", "launch 0"),
        (((0,), (2,)), "an op is computed by no launch", "attention"),
        (((0,), (1,), (1,), (2,)), "an op is computed by two launches", "attention: launches 1 and 2"),
    ],
)
def test_launches_around_an_attention_in_a_wrong_order_are_refused(
    launches: tuple[tuple[int, ...], ...], fault: str, who: str
) -> None:
    with pytest.raises(CoverageError, match=f"{fault}: {who}"):
        check_launches(between(), launches)


def test_a_launch_across_an_attention_is_refused_though_nobody_reads_across() -> None:
    """A product before the attention without readers, and one after it: there is no edge between them."""
    workload = between()
    idle = replace(workload.tile_ops[0], name="idle", rotary=None, norm="", source="y")
    with_idle = replace(workload, ops=(idle, *workload.ops))
    check_launches(with_idle, ((0,), (1,), (2,), (3,)))
    with pytest.raises(CoverageError, match="a launch spans a launch op: launch 2: idle and o_proj"):
        check_launches(with_idle, ((1,), (2,), (0, 3)))
