"""The space of an attention: offered schedules are legal, and neighbours differ in one axis."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from itertools import cycle, islice, product
from typing import Any

import pytest

from tests.support.attentions import attention, space_with
from tests.support.between import between
from tests.support.lanes import soak_unless
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate, apart_kind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import JointSpace
from tuner.errors import IllegalSchedule
from tuner.ops.attention.rules import refuse
from tuner.ops.attention.schedule import AttentionSchedule

WORKLOADS = {
    "alone": attention(),
    "pair": attention(d_out=512),
    "long": attention(sequences=64, kv_heads=1, query_heads=8, head_dim=128, max_length=8192),
    "new tokens": attention(new_tokens=5, max_length=64, d_out=256),
    "between": between(),
    "in a layer": between(num_behind=3),
}


def axes_apart(one: AttentionSchedule, other: AttentionSchedule) -> set[str]:
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


IN_CI = [*zip(WORKLOADS, cycle(("h200", "b200")), strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpu"),
    soak_unless(lambda _, one: one in IN_CI, product(WORKLOADS, ["h200", "a100", "a40", "rtx4090", "b200"])),
)
def test_what_is_drawn_is_legal_proven_and_survives_its_json(name: str, gpu: str) -> None:
    space = JointSpace(WORKLOADS[name], CATALOGUE[gpu])
    drawn = space.sample(random.Random(1), 25)
    assert len(set(drawn)) == len(drawn) == 25
    for schedule in drawn:
        assert space.is_legal(schedule)
        assert Schedule.from_json(schedule.to_json()) == schedule
        candidate = Candidate(plan_kind=apart_kind(len(space.workload.ops)), schedule=schedule)
        (plan,) = own_plans_for(space.workload, space.gpu, candidate)
        assert plan.span_tokens == schedule.launch_ops[0].span_tokens
        assert len(plans_for(space.workload, space.gpu, candidate)) == len(space.workload.tile_ops)


def test_every_axis_is_offered_and_no_schedule_twice() -> None:
    for workload, constant in ((WORKLOADS["alone"], {"next_percent", "next_early"}), (WORKLOADS["pair"], set[str]())):
        offered = space_with(workload).own[0].offered
        assert len(set(offered)) == len(offered)
        varied = {f.name for f in fields(offered[0]) if len({getattr(one, f.name) for one in offered}) > 1}
        assert varied == {field.name for field in fields(AttentionSchedule)} - constant - {"engine"}


@pytest.mark.parametrize("name", ["alone", "new tokens"])
def test_every_legal_launch_of_an_offered_kernel_is_offered_and_no_other(name: str) -> None:
    space: Any = space_with(WORKLOADS[name]).own[0]
    orders = {(one.contiguous, one.speculative, one.by_length) for one in space.offered}
    asks = {(one.next_percent, one.next_early) for one in space.offered}
    plain = {"contiguous": False, "speculative": False, "by_length": False, "next_percent": 0, "next_early": False}
    kernels = {replace(one, **plain) for one in space.offered}
    launches = (
        replace(kernel, contiguous=a, speculative=b, by_length=c, next_percent=percent, next_early=early)
        for kernel, (a, b, c), (percent, early) in product(kernels, orders, asks)
    )
    legal = {one for one in launches if refuse(space.workload, space.gpu, space.op, one) is None}
    assert legal == set(space.offered)


@pytest.mark.parametrize(("gpu", "engine"), [("h200", "tma"), ("a100", "mma"), ("rtx4090", "mma"), ("b200", "mma")])
def test_a_gpu_is_offered_the_engine_that_is_for_it(gpu: str, engine: str) -> None:
    offered = JointSpace(WORKLOADS["pair"], CATALOGUE[gpu]).own[0].offered
    assert {str(one.engine) for one in offered} == {engine}
    assert {one.cluster for one in offered} == ({1, 2, 4, 8, 16} if engine == "tma" else {1})
    assert {one.next_percent for one in offered} == {0, 25, 50, 100}


@pytest.mark.parametrize("name", ["alone", "pair", "between"])
def test_neighbours_are_legal_and_differ_in_the_attention_or_in_the_product(name: str) -> None:
    space = space_with(WORKLOADS[name])
    for schedule in space.sample(random.Random(2), 5):
        near = space.neighbours(schedule)
        assert near
        assert schedule not in near
        for other in near:
            assert space.is_legal(other)
            apart = axes_apart(schedule.launch_ops[0], other.launch_ops[0])
            is_other_product = (other.tiling, other.ordering) != (schedule.tiling, schedule.ordering)
            assert bool(apart) != is_other_product
            # With a tile, a cluster or the warps, span and ring are adjusted as far as necessary.
            assert len(apart - {"span_tokens", "num_stages", "math_warps", "finish_warps"}) <= 1


def test_iterating_a_pair_gives_each_product_with_each_attention() -> None:
    space = space_with(WORKLOADS["pair"])
    assert space.tiles is not None
    first = list(islice(space, space.tiles.num_schedules + 1))
    assert len({schedule.launch_ops for schedule in first}) == 2
    assert space.num_schedules == len(space.own[0].offered) * space.tiles.num_schedules


def test_a_gpu_without_its_instructions_has_no_space() -> None:
    with pytest.raises(IllegalSchedule, match=r"the kernels need 8\.0"):
        JointSpace(WORKLOADS["alone"], replace(CATALOGUE["a100"], compute_capability=(7, 5)))
