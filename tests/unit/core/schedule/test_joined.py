"""Workloads whose ops can be one op: what a joined candidate launches, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from benchmarks.conv.rows import rows
from benchmarks.conv.search import workload_of
from tests.support.cases import H200, ordering
from tests.support.convs import BY_WARPGROUPS, conv, product
from tests.support.convs import workload as convs
from tuner.core.insight.study import panels_of
from tuner.core.insight.traces.forecast_trace import forecast_trace
from tuner.core.legal.legality import check_candidate, kind_problem
from tuner.core.model.forecast import forecast_us
from tuner.core.problem import joined as joining
from tuner.core.problem.asked import workload_of as asked
from tuner.core.problem.joined import computed_by, joined_workload
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
from tuner.search.joined import joined_guesses
from tuner.wire.responses.words import candidate_words

ROWS = {row.name: row for row in rows()}
PAIR = workload_of(ROWS["r50-s1-3x3-1x1/b1"])
SCHEDULE = Schedule(ops=(ConvPairSchedule(rows=4, columns=14),))
#: One image of 10 x 7 with 64 channels, whose convolutions a pair can have.
LINES = {"images": 1, "height": 10, "width": 7, "channels": 64, "filters": 64, "bias": True, "activation": "relu"}
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
        (ffn_pair(m=16, d_in=512, d_hidden=512, d_out=512), "their kinds are gemm"),
        (joined_workload(PAIR), "second has its own launch"),
        (Workload(kind=PAIR.kind, ops=PAIR.ops[:1]), "no kernel computes several of them"),
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


def test_filters_that_do_not_fit_into_an_sm_are_refused() -> None:
    workload = workload_of(ROWS["r50-s3-3x3-1x1/b1"])
    assert "of first and second take 1703936 bytes" in str(kind_problem(workload, H200, PlanKind.JOINED))
    assert joined_space_of(workload, H200) is None


def network(run: str, **options: Any) -> Workload:
    """Convolutions of ResNet-50's first stage, or of another one."""
    return asked({"kind": "network-convs", "network": "resnet50", "stage": 1, "run": run, "images": 1, **options})


#: By name, a workload, what each op of the joined one computes, and its launches of the workload's ops.
CHAINS: dict[str, tuple[Workload, dict[str, tuple[str, ...]], PlanKind, tuple[tuple[int, ...], ...]]] = {
    "a bottleneck": (
        network("block"),
        {"conv1": ("conv1",), "conv3": ("conv2", "conv3")},
        PlanKind.TWO_LAUNCHES_PDL,
        ((0,), (1, 2)),
    ),
    "a stage's first bottleneck": (
        network("first"),
        {"conv1": ("conv1",), "shortcut": ("shortcut",), "conv3": ("conv2", "conv3")},
        PlanKind.FUSED_PDL,
        ((0, 2), (1, 3)),
    ),
    "a product behind": (
        convs(
            conv("a", **LINES),
            conv("b", "a", **LINES, residual_source="x"),
            product("p", "b", 70, 128, 64, activation="relu"),
        ),
        {"b": ("a", "b"), "p": ("p",)},
        PlanKind.TWO_LAUNCHES_PDL,
        ((0, 1), (2,)),
    ),
    "two pairs": (
        convs(conv("a", **LINES), conv("b", "a", **LINES), conv("c", "b", **LINES), conv("d", "c", **LINES)),
        {"b": ("a", "b"), "d": ("c", "d")},
        PlanKind.TWO_LAUNCHES_PDL,
        ((0, 1), (2, 3)),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_two_neighbouring_ops_of_a_chain_are_one_op(name: str) -> None:
    workload, computed, kind, launches = CHAINS[name]
    assert computed_by(workload) == computed
    first = next(joined_guesses(any_space_of(workload, H200), 0))
    made, inside = launched(workload, first)
    assert ([op.name for op in made.ops], inside.plan_kind) == ([*computed], kind)
    check_candidate(workload, H200, first)
    assert launches_of(workload, first) == launches
    assert len(plans_for(workload, H200, first)) == (1 if made.tile_ops else 0)
    assert len(own_plans_for(workload, H200, first)) == len(made.launch_ops)
    assert forecast_us(workload, H200, first) == forecast_us(made, H200, inside)
    assert panels_of(workload, first, 8) is None
    assert forecast_trace(workload, H200, first, 1.0).op_names == tuple(
        op.name for op in (*made.tile_ops, *made.launch_ops)
    )


def test_a_search_also_tries_few_tasks_before_a_pair_so_that_it_loads_filters_meanwhile() -> None:
    (*guesses,) = islice(joined_guesses(any_space_of(network("block"), H200), 0), 4)
    schedules = [one.schedule for one in guesses if one.schedule]
    assert schedules[0].launch_ops == schedules[1].launch_ops != schedules[2].launch_ops
    (few, many), pixels = ([one.tiling.tiles[0] for one in schedules[place::2]] for place in (1, 0)), 56 * 56
    tasks = [{-(-pixels // tile.m) * -(-64 // tile.n) for tile in tiles} for tiles in (few, many)]
    assert max(tasks[0]) <= 66 < min(tasks[1])


def test_an_image_that_another_op_reads_stays_in_memory() -> None:
    others = conv("c", "b", **LINES, residual_source="a")
    workload = convs(conv("a", **LINES), conv("b", "a", **LINES), others)
    assert computed_by(workload) == {"a": ("a",), "c": ("b", "c")}
    last = convs(conv("a", **LINES), conv("b", "a", **LINES), product("p", "a", 70, 128, 64))
    assert "is a, which p also reads" in str(kind_problem(last, H200, PlanKind.JOINED))


def test_a_chain_without_one_of_its_ops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right, workload = of_convs.joined, network("block")
    joining._tried.cache_clear()
    monkeypatch.setattr(of_convs, "joined", lambda ops, dtype: right(ops, dtype)[1:])
    try:
        with pytest.raises(InvalidInput, match=r"conv1\.bias, conv1\.w differ between"):
            joined_workload(workload)
    finally:
        joining._tried.cache_clear()


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
        (pair,) = right(ops, dtype)
        return replace(pair, **CHANGES[change])

    joining._tried.cache_clear()
    monkeypatch.setattr(of_convs, "joined", planted)
    try:
        with pytest.raises(InvalidInput, match="differ between"):
            joined_workload(PAIR)
    finally:
        joining._tried.cache_clear()
