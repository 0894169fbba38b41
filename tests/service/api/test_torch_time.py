"""PyTorch's time stands wherever a result is shown, or its reason does; and no result needs one."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.api.conftest import NUM_TRIALS, TWIN_SEED, Api, serving
from tests.support.serving import body, wait_until_final
from tuner.client.render import verdict_line
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import FinalsTimes, Problem
from tuner.core.trial.torch_time import TorchTime
from tuner.workers.simulated.evaluator import SimulatedEvaluator


class WithTorch(SimulatedEvaluator):
    """A card whose finals are followed by PyTorch's time."""

    def __init__(self, torch: TorchTime) -> None:
        super().__init__(parse_target("simulated:h200"), seed=TWIN_SEED)
        self.torch = torch

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **asked: Any) -> FinalsTimes:
        return replace(super().finals(problem, candidates, **asked), torch=self.torch)


def finished(api: Api) -> str:
    """A job that has succeeded."""
    job_id = api.http.post("/jobs", json=body(budget={"trials": NUM_TRIALS})).json()["id"]
    assert wait_until_final(api.service, job_id) == "succeeded"
    return str(job_id)


def test_the_winner_is_compared_with_pytorch_wherever_a_result_is_shown(tmp_path: Path) -> None:
    torch = TorchTime(time_us=123.25, library_speedup=1.25, num_rounds=20)
    with serving(tmp_path / "data", evaluators=[WithTorch(torch)]) as api:
        job_id = finished(api)
        best = api.get(f"/jobs/{job_id}/best")
        over_library = best["finals"][best["winner_row"]]["speedup"]
        assert best["torch"] == {
            "time_us": 123.25,
            "library_speedup": 1.25,
            "winner_speedup": pytest.approx(1.25 * over_library),
            "num_rounds": 20,
            "reason": "",
        }
        said = f"{1.25 * over_library:.2f} times PyTorch's speed"
        assert said in best["sentence"]
        assert said in verdict_line(best)
        page = api.http.get(f"/ui/jobs/{job_id}").text
        assert best["sentence"] in page.replace("&#39;", "'")
        bars = re.findall(r'<span class="name">(.*?)</span>', page)
        assert bars[0] == "PyTorch"
        assert len(bars) == 1 + sum(1 for row in best["finals"] if row["time_us"])
        assert "123.2 µs" in page
        assert "in 20 rounds with the library" in page
        (known,) = api.get("/ui/results.json")["jobs"]["items"]
        assert known["torch_us"] == 123.25
        assert "123.2 µs" in api.http.get("/ui/results").text


def test_where_pytorch_has_no_time_the_result_and_the_log_say_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch = TorchTime(reason="WorkerError: PyTorch cannot be imported")
    with caplog.at_level(logging.WARNING), serving(tmp_path / "data", evaluators=[WithTorch(torch)]) as api:
        job_id = finished(api)
        best = api.get(f"/jobs/{job_id}/best")
        assert (best["torch"]["time_us"], best["torch"]["winner_speedup"]) == (None, None)
        assert best["torch"]["reason"] == torch.reason
        assert "PyTorch" not in best["sentence"] + verdict_line(best)
        page = api.http.get(f"/ui/jobs/{job_id}").text
        assert "PyTorch has no time: WorkerError: PyTorch cannot be imported" in page
        assert '<span class="name">PyTorch</span>' not in page
    assert f"{job_id}: PyTorch has no time: {torch.reason}" in caplog.text


def test_a_result_without_the_setting_says_nothing_of_pytorch(api: Api) -> None:
    assert api.get(f"/jobs/{api.job_id}/best")["torch"] is None
    assert "PyTorch" not in api.http.get(f"/ui/jobs/{api.job_id}").text
