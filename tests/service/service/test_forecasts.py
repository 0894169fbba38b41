"""A job's trials store their forecasts, and the job reports how good the forecasts were."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import evaluator, finish
from tests.support.builders import TARGET, rejected, spec
from tuner.core.insight.forecast_quality import MIN_TRIALS, forecast_metric, forecast_of, judge_forecasts
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.outcome import Measured
from tuner.errors import NotFound
from tuner.service.runner.forecasts import with_forecast
from tuner.workers.simulated.evaluator import Faults

pytestmark = pytest.mark.slow


# In CI, tests/service/api/test_jobs.py judges forecasts, and tests/unit/service/test_pipeline.py has one that is kept.
@pytest.mark.soak
def test_every_measured_trial_of_ours_keeps_its_forecast_and_the_job_is_judged_by_the_fused_ones(serve: Serve) -> None:
    service = serve(evaluator(faults=Faults(hang=0, crash=0, wrong_numbers=0)), max_ahead=0)  # the same job each time
    job = finish(service, service.submit(replace(spec(trials=60), seed=2))[0])
    gpu, pairs = parse_target(TARGET).gpu, defaultdict[PlanKind, list[tuple[float, float]]](list)
    for trial in service.trials(job.id, limit=60, outcome="measured").items:
        forecast, candidate = forecast_of(trial.outcome), trial.candidate
        if not candidate.plan_kind.is_ours:
            assert forecast is None
            continue
        assert forecast == pytest.approx(forecast_us(job.spec.workload, gpu, candidate))
        if candidate.plan_kind.is_fused:
            assert isinstance(trial.outcome, Measured)
            assert forecast is not None
            pairs[candidate.plan_kind].append((forecast, 1 / trial.outcome.speedup))
    found = service.forecast_quality(job.id)
    assert found == judge_forecasts(max(pairs.values(), key=len))
    assert found.num_trials >= MIN_TRIALS
    assert found.rank_correlation is not None
    assert found.rank_correlation > 0.3  # the simulated card follows the forecast, with an error


def test_a_short_job_says_that_its_trials_are_too_few(serve: Serve) -> None:
    service = serve()
    job = finish(service, service.submit(spec(trials=4))[0])
    assert service.forecast_quality(job.id).reason.startswith("too few")
    with pytest.raises(NotFound):
        service.forecast_quality("job-000000000000")


def test_what_was_not_measured_keeps_no_forecast() -> None:
    assert with_forecast(rejected(), 5.0) == rejected()
    assert forecast_metric(5.0).unit == "us"
