"""A job's measurements in sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.builders import measured, schedule, trial
from tuner.core.insight.explain_job import best_fused, explain_job
from tuner.core.insight.forecast_quality import ForecastQuality, forecast_metric
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.records import Best, FinalRow, PolicyTime, Verdict

GOOD = ForecastQuality(num_trials=41, rank_correlation=0.861, regret=0.012)


def row(kind: PlanKind, number: int, time_us: float | None, stages: int = 2, **changes: Any) -> FinalRow:
    candidate = Candidate(plan_kind=kind, schedule=schedule(stages) if kind.is_ours else None)
    speedup = None if time_us is None else 100 / time_us
    row = FinalRow(
        candidate=candidate, trial_number=number, time_us=time_us, spread=0.0, speedup=speedup, speedup_ci95=None
    )
    return replace(row, **changes)


FINALS = (
    row(PlanKind.LIBRARY, 0, 100.0),
    row(PlanKind.TWO_LAUNCHES, 3, 90.0),
    row(PlanKind.FUSED, 1, 82.0),
    row(PlanKind.FUSED, 2, 80.0, stages=3),
)
TRIALS = [
    trial(0, measured(100.0), PlanKind.LIBRARY),
    trial(1, measured(81.0, metrics=(forecast_metric(60.0),))),
    trial(2, measured(79.0, metrics=(forecast_metric(64.0),)), stages=3),
    trial(3, measured(90.0, metrics=(forecast_metric(75.0),)), PlanKind.TWO_LAUNCHES),
    trial(4, measured(79.79), stages=4),
]


def best(*finals: FinalRow, simulated: bool = False) -> Best:
    return Best(
        job_id="job-1",
        verdict=Verdict.FUSED_WINS,
        winner=PlanKind.FUSED,
        tie_band=0.01,
        procedure=None,
        finals=finals or FINALS,
        reference_us=60.0,
        artifact_digest=None,
        environment=Environment(gpu_name="NVIDIA H200", simulated=simulated),
    )


def test_measured_stands_beside_forecast_for_the_fastest_fused_finalist_and_each_other_kind() -> None:
    chosen = best_fused(FINALS)
    assert chosen == FINALS[3]
    first, second, *_ = explain_job(best(), chosen, TRIALS, GOOD)
    assert first == (
        "Measured: fused 80.0 us in the finals, 1.25 times the library's speed; 75% of the data sheet's bound; "
        "forecast 64.0 us, so it took 1.25 times as long."
    )
    assert second == (
        "Compared with: library 100.0 us; two launches 90.0 us (forecast 75.0). Recommendation: fused, 1.25x."
    )
    assert explain_job(best(simulated=True), chosen, TRIALS, GOOD)[0].startswith("Measured (simulated): ")


def test_the_next_best_measured_trial_of_the_kind_says_in_what_it_differs() -> None:
    words = explain_job(best(), FINALS[3], TRIALS, GOOD)
    assert words[2] == "Next best measured: trial 4, 1.0% slower: num_stages 3 -> 4."
    luckier = [*TRIALS[:4], trial(4, measured(77.42), stages=4)]
    assert "trial 4, 2.0% faster in its trial" in explain_job(best(), FINALS[3], luckier, GOOD)[2]
    assert len(explain_job(best(), FINALS[3], TRIALS[2:3], GOOD)) == 3


def test_what_the_policies_reach_is_told_and_a_forecast_is_marked_as_one() -> None:
    times = (
        PolicyTime(policy="searched", forecast_us=64.0, measured_us=79.0, trial_number=2),
        PolicyTime(policy="longest_first", forecast_us=70.04, measured_us=None, trial_number=None),
    )
    sentence = explain_job(replace(best(), policies=times), FINALS[3], TRIALS, GOOD)[3]
    launch = "with this kernel on this grid, in one plain launch"
    assert sentence == f"Policies, {launch}: searched 79.0 us in trial 2, longest first 70.0 us (forecast)."
    marked = explain_job(replace(best(simulated=True), policies=times), FINALS[3], TRIALS, GOOD)[3]
    assert marked.startswith(f"Policies (simulated), {launch}: ")


def test_the_quality_of_the_forecasts_is_reported_or_why_it_is_not() -> None:
    sentence = explain_job(best(), FINALS[3], TRIALS, GOOD)[-1]
    assert "rank correlation 0.86" in sentence
    assert "41 fused trials" in sentence
    assert "1.2% slower" in sentence
    assert "too few: 3" in explain_job(best(), FINALS[3], TRIALS, ForecastQuality(num_trials=3))[-1]


def test_trials_without_a_forecast_and_finalists_without_a_time_say_so() -> None:
    bare = [replace(one, outcome=replace(one.outcome, metrics=())) for one in TRIALS]
    assert "its trial has no stored forecast" in explain_job(best(), FINALS[3], bare, GOOD)[0]
    lost = row(PlanKind.FUSED, 1, None, reason="it hung")
    assert best_fused((FINALS[0], lost)) == lost
    assert explain_job(best(FINALS[0], lost), lost, TRIALS, GOOD)[0].endswith("was not timed in the finals: it hung.")
    assert best_fused(FINALS[:1]) is None
