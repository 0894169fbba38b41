from __future__ import annotations

import random

import pytest

from tests.support.lanes import soaked
from tests.support.spaces import space_of
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.errors import InvalidInput
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

TARGET = parse_target("simulated:h200")
PROBLEM = Problem(workload=ffn_pair(m=256, d_in=1024, d_hidden=4096, d_out=1024), objective=Objective())


@pytest.fixture
def twin() -> SimulatedEvaluator:
    return SimulatedEvaluator(TARGET, faults=Faults(hang=0, crash=0, wrong_numbers=0))


def values(twin: SimulatedEvaluator, candidate: Candidate) -> dict[str, float]:
    report = twin.count(PROBLEM, candidate, None)
    assert report.reason == ""
    assert all(counter.description.startswith("Simulated: ") for counter in report.counters)
    return {counter.name: counter.value for counter in report.counters}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*soaked(PlanKind.FUSED), PlanKind.TWO_LAUNCHES])
def test_no_candidate_reads_less_than_it_must_nor_hits_more_than_all(twin: SimulatedEvaluator, kind: PlanKind) -> None:
    floor = PROBLEM.workload.compulsory_bytes
    for schedule in space_of(PROBLEM.workload, TARGET.gpu).sample(random.Random(1), 10):
        counted = values(twin, Candidate(plan_kind=kind, schedule=schedule))
        moved = counted["dram__bytes_read.sum"] + counted["dram__bytes_write.sum"]
        assert moved >= 0.99 * floor
        assert 0 <= counted["lts__t_sector_hit_rate.pct"] <= 100
        assert counted["gpu__time_duration.sum"] > 0


def test_the_library_moves_what_must_be_moved(twin: SimulatedEvaluator) -> None:
    counted = values(twin, Candidate(plan_kind=PlanKind.LIBRARY))
    assert counted["dram__bytes_read.sum"] + counted["dram__bytes_write.sum"] == PROBLEM.workload.compulsory_bytes


def test_metrics_by_name_are_counted_in_the_order_asked_and_unknown_ones_refused(twin: SimulatedEvaluator) -> None:
    library = Candidate(plan_kind=PlanKind.LIBRARY)
    asked = ("lts__t_sector_hit_rate.pct", "dram__bytes_read.sum")
    assert tuple(counter.name for counter in twin.count(PROBLEM, library, asked).counters) == asked
    with pytest.raises(InvalidInput, match=r"'dram__bytes_reed.sum'; use one of dram__bytes_read.sum"):
        twin.count(PROBLEM, library, ("dram__bytes_reed.sum",))


def test_a_candidate_with_a_fault_has_no_counters_but_a_reason() -> None:
    twin = SimulatedEvaluator(TARGET, faults=Faults(hang=1, crash=0, wrong_numbers=0))
    [schedule] = space_of(PROBLEM.workload, TARGET.gpu).sample(random.Random(1), 1)
    report = twin.count(PROBLEM, Candidate(plan_kind=PlanKind.FUSED, schedule=schedule), None)
    assert (report.counters, report.reason) == ((), "simulated: a wait never ended")
