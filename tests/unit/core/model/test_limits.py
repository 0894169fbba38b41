"""A forecast with a time limit stops as soon as it exceeds the limit, and none is below its lower bound."""

from __future__ import annotations

import math
import random

import pytest

from tests.support.cases import decoder_block
from tests.support.lanes import soak_unless, soaked
from tests.support.spaces import space_of
from tuner.core.model.forecast import forecast_us, least_us
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, PlanError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

H200 = CATALOGUE["h200"]
FEW = ffn_pair(m=64, d_in=512, d_hidden=1024, d_out=512)
WORKLOADS = {
    "few rows": FEW,
    "gated": ffn_pair(m=320, d_in=1024, d_hidden=896, d_out=1024, gated=True),
    "independent": independent_pair((512, 1024, 512), (512, 256, 2048)),
    "chain": decoder_block(16, 512, 704, 768, heads=4),
    "many rows": ffn_pair(m=1024, d_in=2048, d_hidden=2048, d_out=2048),
    "many weights": ffn_pair(m=16, d_in=8192, d_hidden=8192, d_out=4096),
}
#: The least share of the best forecast that its lower bound is.
SHARES = {"many rows": 0.8, "many weights": 0.8}


def drawn(workload: Workload, count: int) -> list[Schedule]:
    return space_of(workload, H200).sample(random.Random(1), count)


# In CI, a forecast with a limit is that without one, or infinite.
@pytest.mark.soak
def test_what_takes_longer_than_the_limit_takes_for_ever_and_all_else_as_long_as_without_one() -> None:
    plans = [plans_for(FEW, H200, fused(schedule))[0] for schedule in drawn(FEW, 12)]
    whole = [simulate(plan) for plan in plans]
    times_us = [one.makespan_us for one in whole]
    limit_us = sorted(times_us)[5]
    limited = [simulate(plan, limit_us=limit_us) for plan in plans]
    kept = [
        (one.makespan_us, time_us) for one, time_us in zip(limited, times_us, strict=True) if one.makespan_us < math.inf
    ]
    assert all(time_us == limited_us for limited_us, time_us in kept)
    assert {time_us for time_us in times_us if time_us <= limit_us} <= {time_us for _, time_us in kept}
    over = [(one, all_of) for one, all_of in zip(limited, whole, strict=True) if one.makespan_us == math.inf]
    assert over
    num_tasks, num_all = (sum(len(one.rows) for one in ones) for ones in zip(*over, strict=True))
    assert num_tasks < 0.9 * num_all, "none of them ended early"


def test_a_forecast_with_a_limit_is_that_without_one_or_infinite_whatever_was_asked_before() -> None:
    for schedule in drawn(FEW, 4):
        candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=schedule.but())
        (plan,) = plans_for(FEW, H200, candidate)
        time_us = simulate(plan).makespan_us
        assert forecast_us(FEW, H200, candidate, 0.5 * time_us) == math.inf
        assert forecast_us(FEW, H200, candidate, 0.7 * time_us) == math.inf
        assert forecast_us(FEW, H200, candidate, 1.5 * time_us) == time_us
        assert forecast_us(FEW, H200, candidate) == time_us
        assert forecast_us(FEW, H200, candidate, 0.7 * time_us) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", soak_unless(lambda _, name: name == "chain", WORKLOADS))
def test_no_forecast_is_below_its_lower_bound_and_some_are_near_it(name: str) -> None:
    workload, shares = WORKLOADS[name], list[float]()
    kinds = [kind for kind in PlanKind if kind.is_for(len(workload.ops)) and kind.is_ours and not kind.is_in_runs]
    for number, schedule in enumerate(drawn(workload, 24)):
        candidate = Candidate(plan_kind=kinds[number % len(kinds)], schedule=schedule)
        for one in (candidate, fused(schedule)):
            try:
                time_us = forecast_us(workload, H200, one)
            except (IllegalSchedule, PlanError):
                continue
            assert least_us(workload, H200, one) <= time_us
            shares.append(least_us(workload, H200, one) / time_us if one.plan_kind is PlanKind.FUSED else 0.0)
    assert len(shares) >= 24
    assert max(shares) > SHARES.get(name, 0.2)


# In CI, no forecast is below its lower bound.
@pytest.mark.soak
@pytest.mark.parametrize("name", ["gated", *soaked("many rows")])
def test_no_simulation_stops_before_its_own_time_has_passed(name: str) -> None:
    workload = WORKLOADS[name]
    for schedule in drawn(workload, 12):
        (plan,) = plans_for(workload, H200, fused(schedule))
        time_us = simulate(plan).makespan_us
        assert simulate(plan, limit_us=time_us).makespan_us == time_us
