"""User-supplied baseline programs appear wherever a result is shown, with a time or the reason for its absence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.api.conftest import NUM_TRIALS, TWIN_SEED, Api, serving
from tests.support.serving import body, wait_until_final
from tuner.client.delivery.output import plain_console
from tuner.client.terminal.render import results_table
from tuner.core.insight.explain_job import explain_job
from tuner.core.insight.forecast_quality import ForecastQuality
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.reports.baselines import Baseline, BaselineTime, PythonFunction
from tuner.errors import NotFound, WorkerError
from tuner.workers.simulated.evaluator import SimulatedEvaluator

TIMED = BaselineTime(
    name="ours of 2025", time_us=123.25, speedup=0.5, speedup_ci95=(0.49, 0.51), winner_speedup=2.25, num_rounds=20
)
WRONG = BaselineTime(name="<b>mine</b>", reason="down: relative error 3.00e-01, at most 2e-03 is allowed")
PROGRAMS = [Baseline(name=one.name, program=PythonFunction(pickled=b"", arguments=())) for one in (TIMED, WRONG)]


class WithPrograms(SimulatedEvaluator):
    """A GPU that timed user-supplied programs; `asked` lists the requests."""

    asked: tuple[Any, ...] = ()
    error: WorkerError | None = None

    def beside(
        self, problem: Problem, candidates: tuple[Candidate, ...], baselines: tuple[Baseline, ...], **asked: Any
    ) -> tuple[BaselineTime, ...]:
        if self.error:
            raise self.error
        self.asked = candidates, baselines, asked
        return TIMED, WRONG


@pytest.fixture(scope="module")
def evaluator() -> WithPrograms:
    return WithPrograms(parse_target("simulated:h200"), seed=TWIN_SEED)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, evaluator: WithPrograms) -> Iterator[tuple[Api, str]]:
    with serving(tmp_path_factory.mktemp("own") / "data", evaluators=[evaluator]) as api:
        job_id = api.http.post("/jobs", json=body(budget={"trials": NUM_TRIALS})).json()["id"]
        assert wait_until_final(api.service, job_id) == "succeeded"
        api.service.beside(job_id, PROGRAMS)
        yield api, job_id


@pytest.mark.slow
def test_they_are_timed_with_all_finalists_and_kept_with_the_result(
    finished: tuple[Api, str], evaluator: WithPrograms
) -> None:
    api, job_id = finished
    best = api.service.best(job_id)
    assert best.baselines == (TIMED, WRONG)
    candidates, baselines, asked = evaluator.asked
    assert candidates == tuple(row.candidate for row in best.finals if row.time_us)
    assert baselines == tuple(PROGRAMS)
    assert candidates[asked["winner"]] == best.finals[best.winner_row or 0].candidate
    assert asked["num_rounds"] > 0


def test_api_page_table_and_explanation_show_them_by_name(finished: tuple[Api, str]) -> None:
    api, job_id = finished
    best = api.get(f"/jobs/{job_id}/best")
    timed, wrong = best["baselines"]
    assert (timed["name"], timed["time_us"], timed["speedup_ci95"]) == ("ours of 2025", 123.25, [0.49, 0.51])
    assert (wrong["time_us"], wrong["reason"]) == (None, WRONG.reason)
    page = api.http.get(f"/ui/jobs/{job_id}").text
    assert page.count('<span class="name">ours of 2025</span>') == 1
    assert "2.250 times the winner's time, in 20 rounds with all finalists" in page
    assert "&lt;b&gt;mine&lt;/b&gt;</td>" in page
    assert f"not timed: {WRONG.reason}" in page
    console = plain_console(width=200)
    with console.capture() as captured:
        console.print(results_table(best))
    assert "your own, 2.250 times the winner's time" in captured.get()
    assert f"your own: {WRONG.reason}" in captured.get()
    found = api.service.best(job_id)
    quality = ForecastQuality(num_trials=0)
    (said,) = [one for one in explain_job(found, found.finals[1], (), quality) if one.startswith("Your own")]
    assert "ours of 2025 123.2 us, 2.25 times the winner's time" in said
    assert WRONG.reason in said


def test_a_card_that_fails_is_the_reason_of_all_and_the_result_stands(
    finished: tuple[Api, str], evaluator: WithPrograms
) -> None:
    api, job_id = finished
    before = api.service.best(job_id)
    evaluator.error = WorkerError("the card does not answer")
    try:
        found = api.service.beside(job_id, PROGRAMS)
    finally:
        evaluator.error = None
    assert {one.reason for one in found.baselines} == {"the card does not answer"}
    assert (found.finals, found.verdict) == (before.finals, before.verdict)
    api.service.beside(job_id, PROGRAMS)


# In CI, test_bad_input.py refuses fields that a request does not have.
@pytest.mark.soak
def test_no_request_brings_a_program(finished: tuple[Api, str]) -> None:
    api, _ = finished
    asked = body(baselines={"mine": "import os"})
    answer = api.http.post("/jobs", json=asked)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "baselines"
    assert not [path for path in api.get("/openapi.json")["paths"] if "baseline" in path or "beside" in path]


def test_a_job_without_a_result_has_nothing_beside_which_to_time_them(finished: tuple[Api, str]) -> None:
    api, _ = finished
    with pytest.raises(NotFound):
        api.service.beside("job-000000000000", PROGRAMS)
