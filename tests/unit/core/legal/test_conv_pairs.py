"""Pairs of convolutions in one CTA: refusals, forecasts beside measured times, and the twin's space."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.conv.rows import rows
from benchmarks.conv.search import workload_of
from tests.support.conv_pairs import ASKED, CASES, pair, workload
from tests.support.repository import ROOT
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.asked import workload_of as workload_asked
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.joined import joined_workload
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair.geometry import geometry_of
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.rules import CAPABILITY, MOST_FILTER_BYTES, refuse
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.search.guesses.seeds import first_guesses

H200 = CATALOGUE["h200"]
PLAIN = ConvPairSchedule()


@pytest.mark.parametrize("name", CASES)
def test_cases_are_legal_and_survive_json(name: str) -> None:
    op, schedule, dtype = CASES[name]
    made = workload(op, dtype)
    assert refuse(made, H200, op, schedule) is None
    assert Workload.from_json(made.to_json()) == made
    assert Schedule.from_json(Schedule(ops=(schedule,)).to_json()) == Schedule(ops=(schedule,))


@pytest.mark.parametrize(
    ("options", "schedule", "target", "reason"),
    [
        ({}, PLAIN, "a100", "need 9.0, use two convolutions"),
        ({"channels": 24}, PLAIN, "h200", "a multiple of 16"),
        ({"between": 32}, PLAIN, "h200", "between is 32"),
        ({"between": 128, "filters": 128}, PLAIN, "h200", "bytes of shared memory"),
        ({}, ConvPairSchedule(together=True), "h200", "use together false"),
        ({}, ConvPairSchedule(rows=16), "h200", "tiles of 16 rows, and an image has 9: use 14"),
        ({"height": 60, "width": 60}, ConvPairSchedule(rows=16, columns=16), "h200", "at most 256"),
        ({"images": 99, "height": 60, "width": 60}, PLAIN, "h200", "tiles: use larger ones"),
    ],
)
def test_a_refusal_says_why(options: dict[str, int], schedule: ConvPairSchedule, target: str, reason: str) -> None:
    op = pair(**options)
    assert reason in str(refuse(workload(op), CATALOGUE[target], op, schedule))


def test_two_convolutions_are_one_op_with_the_same_tensors() -> None:
    two = workload_asked(ASKED)
    made = joined_workload(two)
    (op,) = made.ops
    assert isinstance(op, ConvPairOp)
    assert (op.name, op.m, op.num_flops) == ("second", two.ops[1].m, two.num_flops)
    assert made.compulsory_bytes == two.compulsory_bytes
    names = {"x", "first.w", "first.bias", "second.w", "second.bias", "second"}
    assert {one.name for one in op.tensors(made.dtype)} == names


@pytest.mark.parametrize("is_own", [False, True], ids=["a shortcut", "its own images"])
def test_an_added_image_is_a_tensor_of_the_one_op(is_own: bool) -> None:
    last = {"second": {"filters": 64, "kernel": 3, "stride": 1}} if is_own else {}
    two = workload_asked({**ASKED, **last, "residual": True})
    if is_own:
        first, second = two.ops
        assert isinstance(second, ConvOp)
        two = replace(two, ops=(first, replace(second, residual_source="x")))
    made = joined_workload(two)
    (op,) = made.ops
    assert isinstance(op, ConvPairOp)
    added = "x" if is_own else "shortcut"
    assert [read.tensor for read in op.reads] == ["x", added]
    assert [one.name for one in op.tensors(made.dtype)].count(added) == 1
    assert made.compulsory_bytes == two.compulsory_bytes
    assert op.words().adds == f"bias and {added}"
    assert Workload.from_json(made.to_json()) == made


def test_room_for_the_added_image_is_shared_memory() -> None:
    options = {"second_kernel": 1, "second_padding": 0, "filters": 256}
    plain, adding = pair(**options), pair(**options, residual_source="r")
    schedule = ConvPairSchedule(rows=7, columns=8)
    found = [geometry_of(op, schedule) for op in (plain, adding)]
    assert [one.num_stages for one in found] == [1, 4]
    assert found[1].smem_bytes - found[0].smem_bytes == 3 * found[0].stage_bytes


@pytest.mark.parametrize(
    ("of_first", "of_second"),
    [
        ({}, {"bias": False}),
        ({}, {"source": "y"}),
        ({"residual_source": "r"}, {}),
        ({"filters": 256}, {"channels": 256, "residual_source": "first"}),
    ],
    ids=["one bias", "another source", "an image is added first", "the first one's images are added"],
)
def test_two_convolutions_without_that_form_are_refused(of_first: dict[str, Any], of_second: dict[str, Any]) -> None:
    first, second = workload_asked(ASKED).ops
    assert isinstance(first, ConvOp)
    assert isinstance(second, ConvOp)
    with pytest.raises(InvalidInput):
        ConvPairOp.of(replace(first, **of_first), replace(second, **of_second))


def test_an_invalid_filter_is_named() -> None:
    with pytest.raises(InvalidInput) as error:
        pair(second_kernel=4)
    assert error.value.field == "second_kernel"


def test_its_layout_is_that_of_the_measured_kernel() -> None:
    """Numbers of the measured kernel for two 3x3 convolutions and tiles of 8 x 8."""
    geometry = geometry_of(pair(height=56, width=56), PLAIN)
    assert (geometry.patch.products, geometry.middle.products) == (118, 78)
    assert geometry.filter_bytes == (72 * 65 * 16, 72 * 65 * 16)


# In CI, tests/unit/core/model/test_gathering.py has times of convolutions, and test_forecast.py ranks pairs.
@pytest.mark.soak
def test_forecasts_rank_measured_schedules() -> None:
    known, found = {row.name: row for row in rows()}, list[tuple[float, float]]()
    best = dict[str, list[tuple[float, float]]]()
    for line in json.loads((ROOT / "benchmarks/results/h200/conv_in_one_cta.json").read_text())["rows"]:
        op = ConvPairOp.of(*workload_of(known[line["row"]]).tile_ops)  # type: ignore[arg-type]
        for name, us in line["us"].items():
            size, _, how = name.partition(" ")
            if how not in ("alone", "in twos"):
                continue
            high, wide = map(int, size.split("x"))
            schedule = ConvPairSchedule(rows=high, columns=wide, warpgroups=1 + (how == "in twos"))
            candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=Schedule(ops=(schedule,)))
            try:
                forecast = forecast_us(workload(op), H200, candidate)
            except IllegalSchedule:  # too many tiles
                continue
            found.append((forecast, us))
            best.setdefault(line["row"], []).append((forecast, us))
    ranks = np.argsort(np.argsort(np.array(found), axis=0), axis=0).T
    assert len(found) > 80
    assert np.asarray(np.corrcoef(ranks))[0, 1] > 0.95
    assert all(0.8 < forecast / us < 1.35 for forecast, us in found)
    for of_row in best.values():  # the schedule that is tried first is within 8 % of the fastest
        assert min(of_row)[1] < 1.08 * min(us for _, us in of_row)


def test_a_search_begins_with_the_fastest_forecast() -> None:
    made = joined_workload(workload_asked(ASKED))
    guesses = list(first_guesses(any_space_of(made, H200), 0))[:4]
    times = [forecast_us(made, H200, Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=guess)) for guess in guesses]
    assert times == sorted(times)
    assert len(set(guesses)) == 4


def test_pairs_whose_filters_no_gpu_could_hold_are_not_joined() -> None:
    """The limit is that of every GPU that the kernel runs on, so a candidate means the same on all of them."""
    able = [gpu for gpu in CATALOGUE.values() if gpu.compute_capability == CAPABILITY]
    assert {gpu.smem_per_cta_bytes for gpu in able} == {MOST_FILTER_BYTES}
    small = replace(H200, smem_per_cta_bytes=MOST_FILTER_BYTES // 2)
    made = joined_workload(workload_asked(ASKED))
    assert refuse(made, H200, made.ops[0], PLAIN) is None  # type: ignore[arg-type]
    assert f"a CTA has {MOST_FILTER_BYTES // 2} on" in str(refuse(made, small, made.ops[0], PLAIN))  # type: ignore[arg-type]
