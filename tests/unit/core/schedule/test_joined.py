"""Workloads whose ops can be one op: what a joined candidate launches, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.conv.rows import rows
from benchmarks.conv.search import workload_of
from tests.support.cases import H200, ordering
from tests.support.convs import BY_WARPGROUPS
from tuner.core.insight.traces.forecast_trace import forecast_trace
from tuner.core.legal.legality import check_candidate, kind_problem
from tuner.core.model.forecast import forecast_us
from tuner.core.problem import joined as joining
from tuner.core.problem.joined import joined_workload
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import launches_of, own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate, fused, in_fewest_launches, launched
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of, joined_space_of
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.ops.conv import joined as of_convs
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.ops.gemm.pairs import ffn_pair
from tuner.wire.responses.words import candidate_words

ROWS = {row.name: row for row in rows()}
PAIR = workload_of(ROWS["r50-s1-3x3-1x1/b1"])
SCHEDULE = Schedule(ops=(ConvPairSchedule(rows=4, columns=14),))
JOINED = Candidate(plan_kind=PlanKind.JOINED, schedule=SCHEDULE)


def test_a_joined_candidate_is_one_launch_of_the_op_that_computes_all_ops() -> None:
    workload, candidate = launched(PAIR, JOINED)
    assert [op.name for op in workload.ops] == ["second"]
    assert candidate == Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=SCHEDULE)
    assert launched(workload, candidate) == (workload, candidate)
    assert plans_for(PAIR, H200, JOINED) == ()
    assert own_plans_for(PAIR, H200, JOINED) == own_plans_for(workload, H200, candidate) != ()
    assert launches_of(PAIR, JOINED) == ((0, 1),)
    assert forecast_us(PAIR, H200, JOINED) == forecast_us(workload, H200, candidate)
    assert in_fewest_launches(PAIR, SCHEDULE) == JOINED
    assert forecast_trace(PAIR, H200, JOINED, 1.0).op_names == ("second",)
    assert any("in shared memory" in sentence for sentence in candidate_words(JOINED, PAIR))


def test_other_candidates_launch_the_workload_itself() -> None:
    _, tiling = next(iter(BY_WARPGROUPS.values()))
    other = fused(Schedule.of(tiling=tiling, ordering=ordering(2)))
    assert launched(PAIR, other) == (PAIR, other)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (ffn_pair(m=16, d_in=512, d_hidden=512, d_out=512), "no kernel computes all of them as one op"),
        (joined_workload(PAIR), "no kernel computes all of them as one op"),
        (Workload(kind=PAIR.kind, ops=PAIR.ops[:1]), "no kernel"),
        (replace(PAIR, ops=(PAIR.ops[0], replace(PAIR.ops[1], bias=False))), "bias is True for first"),
    ],
    ids=["products", "joined already", "one op", "biases differ"],
)
def test_a_workload_without_such_an_op_does_not_have_the_kind(workload: Workload, reason: str) -> None:
    found = str(kind_problem(workload, H200, PlanKind.JOINED))
    assert reason.rpartition("bias ")[2] in found
    assert joined_space_of(workload, H200) is None
    with pytest.raises(IllegalSchedule, match="joined"):
        launched(workload, JOINED)


def test_filters_that_do_not_fit_into_an_sm_leave_the_kind_without_schedules() -> None:
    workload = workload_of(ROWS["r50-s3-3x3-1x1/b1"])
    assert kind_problem(workload, H200, PlanKind.JOINED) is None
    assert joined_space_of(workload, H200) is None


def test_a_schedule_of_the_other_workload_is_refused() -> None:
    check_candidate(PAIR, H200, JOINED)
    own = next(iter(any_space_of(PAIR, H200)))
    for kind, schedule in ((PlanKind.JOINED, own), (PlanKind.FUSED, SCHEDULE)):
        with pytest.raises(IllegalSchedule):
            check_candidate(PAIR, H200, Candidate(plan_kind=kind, schedule=schedule))
    illegal = Schedule(ops=(ConvPairSchedule(rows=4, columns=14, together=True),))
    with pytest.raises(IllegalSchedule, match="use together false"):
        check_candidate(PAIR, H200, Candidate(plan_kind=PlanKind.JOINED, schedule=illegal))


CHANGES: dict[str, dict[str, Any]] = {
    "other filters": {"filters": 128},
    "another input": {"source": "y"},
    "weights with a name of its own": {"first_op": ""},
    "the first op's name": {"name": "both"},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_op_with_other_tensors_is_refused(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    right: Callable[..., Any] = of_convs.joined

    def planted(ops: Sequence[Any], dtype: Any) -> Any:
        return replace(right(ops, dtype), **CHANGES[change])

    joining._tried.cache_clear()
    monkeypatch.setattr(of_convs, "joined", planted)
    try:
        with pytest.raises(InvalidInput, match="differ between"):
            joined_workload(PAIR)
    finally:
        joining._tried.cache_clear()
