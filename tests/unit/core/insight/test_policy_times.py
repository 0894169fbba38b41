from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.between_made import candidate_of
from tests.support.builders import measured
from tests.support.cases import H200, small_gpu
from tests.support.presets import decoder_layer
from tuner.core.insight.policy_times import policy_times
from tuner.core.model.forecast import forecast_us
from tuner.core.model.simulate import simulate
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.ordering import Ordering, Raster, RasterKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.space.policy_orders import RULES, policy_plans, policy_schedules
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Outcome
from tuner.ops.gemm.pairs import ffn_pair

PAIR, GPU = ffn_pair(m=70, d_in=64, d_hidden=96, d_out=130), small_gpu(5)
TILING = Tiling(tiles=(Tile(m=16, n=32, k=32), Tile(m=32, n=64, k=32)), num_stages=3, num_warps=4)
CHOSEN = Schedule.of(tiling=TILING, ordering=Ordering(rasters=(Raster(kind=RasterKind.COLUMN),) * 2))
NAMED = policy_schedules(PAIR, GPU, CHOSEN)


def trial(number: int, schedule: Schedule, outcome: Outcome, kind: PlanKind = PlanKind.FUSED) -> Trial:
    candidate = Candidate(plan_kind=kind, schedule=schedule)
    return Trial(number=number, candidate=candidate, outcome=outcome, num_known=0, started_at=0, finished_at=0)


def test_a_policy_is_measured_where_a_trial_ran_its_order_and_forecast_in_any_case() -> None:
    trials = [trial(1, CHOSEN, measured(40.0)), trial(2, NAMED["append"], measured(50.0))]
    times = {one.policy: one for one in policy_times(PAIR, GPU, CHOSEN, trials)}
    assert list(times) == ["searched", *RULES]
    measured_by = {name: (one.measured_us, one.trial_number) for name, one in times.items()}
    assert measured_by == {
        "searched": (40.0, 1), "wavefront": (None, None), "append": (50.0, 2), "longest_first": (None, None)
    }  # fmt: skip
    for name, plan in policy_plans(PAIR, GPU, CHOSEN).items():
        assert times[name].forecast_us == pytest.approx(simulate(plan).makespan_us)


def test_another_kernel_and_another_way_to_launch_are_no_measure_of_a_policy() -> None:
    deeper = NAMED["append"].but(tiling=replace(TILING, num_stages=4))
    trials = [
        trial(1, deeper, measured(30.0)),
        trial(2, NAMED["append"], measured(30.0), PlanKind.FUSED_PDL),
        trial(3, NAMED["append"], measured(30.0), PlanKind.TWO_LAUNCHES),
    ]
    assert all(one.measured_us is None for one in policy_times(PAIR, GPU, CHOSEN, trials))


def test_the_fastest_trial_of_an_order_counts_and_one_that_ended_early_only_where_there_is_no_other() -> None:
    ahead = NAMED["append"].but(ordering=replace(NAMED["append"].ordering, run_ahead=0))
    trials = [
        trial(1, NAMED["append"], measured(50.0)),
        trial(2, ahead, measured(45.0)),
        trial(3, NAMED["append"], measured(20.0, truncated=True)),
    ]
    found = {one.policy: one.trial_number for one in policy_times(PAIR, GPU, CHOSEN, trials)}
    assert found["append"] == 2  # the filling of a ring is not part of an order
    found = {one.policy: one.trial_number for one in policy_times(PAIR, GPU, CHOSEN, trials[2:])}
    assert found["append"] == 3


def test_a_schedule_without_a_plan_here_has_no_policies() -> None:
    assert policy_times(PAIR, replace(GPU, smem_per_cta_bytes=1024), CHOSEN, []) == ()


def test_a_forecast_beside_an_attention_has_the_attentions_time_too() -> None:
    workload = decoder_layer("llama3-8b", sequences=16, max_length=2048)
    chosen = candidate_of(workload, PlanKind.FUSED).schedule
    assert chosen is not None
    searched, *_ = policy_times(workload, H200, chosen, [])
    assert searched.forecast_us == pytest.approx(forecast_us(workload, H200, fused(chosen)))
    (plan,) = plans_for(workload, H200, fused(chosen))
    assert searched.forecast_us > simulate(plan).makespan_us + 30.0
