"""The table of the GPU tests, without a GPU: every row is legal and proven, and has the claimed properties."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.cases import H200
from tests.support.conformance import cluster_k, first_wave, hints, split
from tests.support.conformance.case import Case, Claim
from tests.support.conformance.table import CASES, TABLES
from tests.support.conformance.workloads import RAGGED
from tests.support.lanes import one_in
from tuner.core.legal.wgmma import sum_exchanges
from tuner.core.plan.table.header import FIRST_WAVE
from tuner.core.proof.candidate_plans import launches_of, own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind


def candidates(case: Case) -> tuple[Candidate, ...]:
    return (case.on(H200), *case.others)


@pytest.mark.slow
@pytest.mark.parametrize("table", one_in(8, TABLES), ids=lambda table: table.__name__.rsplit(".", 1)[1])
def test_every_row_is_legal_and_its_plans_are_proven(table: object) -> None:
    for case in table.CASES:  # type: ignore[attr-defined]
        for candidate in candidates(case):
            if candidate.plan_kind is not PlanKind.LIBRARY:
                workload = case.built_for or case.workload
                plans, attentions = (of(workload, H200, candidate) for of in (plans_for, own_plans_for))
                assert len(attentions) == len(workload.launch_ops), case.id
                assert not workload.ops or len(plans) == len(launches_of(workload, candidate)) - len(
                    workload.launch_ops
                ), case.id


def test_no_row_is_there_twice_and_each_has_an_id_of_its_own() -> None:
    ids = Counter((case.claim, case.id) for case in CASES)
    rows = Counter((case.claim, case.workload, candidates(case), case.wait, case.built_for) for case in CASES)
    assert [key for key, count in ids.items() if count > 1] == []
    assert [key for key, count in rows.items() if count > 1] == []


def test_every_claim_has_rows_and_what_it_needs() -> None:
    assert {case.claim for case in CASES} == set(Claim)
    for case in CASES:
        assert bool(case.others) == (case.claim is Claim.SAME_BITS), case.id
        assert (case.built_for is not None) == (case.claim is Claim.FOUND_OUT), case.id
        assert case.candidate.schedule or case.claim is Claim.NUMBERS, case.id


def test_every_number_of_exchanges_of_a_shared_sum_occurs() -> None:
    found = {
        (chosen.tiling.cluster_k, sum_exchanges(op, tile, chosen.tiling)[0])
        for chosen in cluster_k.SHAPES.values()
        for op, tile in zip(RAGGED.tile_ops, chosen.tiling.cta_tiles, strict=True)
    }
    assert found == {
        *((2, exchanges) for exchanges in (1, 2, 3, 4, 5, 6)),
        *((4, exchanges) for exchanges in (1, 2, 3, 4, 5, 6, 8)),
    }


@pytest.mark.parametrize("shape", first_wave.SHAPES)
def test_most_tasks_behind_a_first_wave_are_drawn(shape: str) -> None:
    candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=first_wave.SHAPES[shape])
    (plan,) = plans_for(RAGGED, H200, candidate)
    assert plan.plan.assignment == FIRST_WAVE
    assert plan.plan.num_tasks > 2 * plan.plan.num_ctas


def test_every_legal_pair_of_hints_is_run() -> None:
    counts = {
        (on, name): len(hints.hinted(name, shape, workload))
        for on, workload in hints.PAIRS.items()
        for name, shape in hints.SHAPES.items()
    }
    assert counts["ragged", "mma"] >= 6
    assert counts["ragged", "wgmma"] >= 6
    assert counts["odd", "mma"] >= 6
    assert {case.id.split("-")[2].split(",")[0] for case in hints.CASES} == {"mma", "wgmma"}


def test_the_parts_that_are_counted_are_those_of_every_tile() -> None:
    """4 parts for each of 3 x 17 tiles, and 8 for each of 3 x 4."""
    (case,) = (case for case in split.CASES if case.num_posts)
    (plan,) = plans_for(case.workload, H200, case.on(H200))
    slots = {task[8]: task[7] for task in plan.plan.tasks.tolist() if task[7]}
    assert [slots[slot] for slot in sorted(slots)] == [4] * (3 * 17) + [8] * (3 * 4)
    assert case.num_posts == 17
