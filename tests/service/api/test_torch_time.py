"""PyTorch's time, or the reason why it is missing, appears wherever a result is shown; no result requires one."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.api.conftest import TWIN_SEED, Api, serving
from tests.support.serving import body, wait_until_final
from tuner.client.commands.fetch import recipe_lines
from tuner.client.terminal.render import verdict_line
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import FinalsTimes, Problem
from tuner.core.trial.reports.torch_time import TorchTime
from tuner.workers.host.torch_beside import beside_compiled
from tuner.workers.protocol.messages import FinalsAnswer, OtherTimes
from tuner.workers.simulated.evaluator import SimulatedEvaluator


class WithTorch(SimulatedEvaluator):
    """A GPU whose finals are followed by timing PyTorch."""

    def __init__(self, torch: TorchTime) -> None:
        super().__init__(parse_target("simulated:h200"), seed=TWIN_SEED)
        self.torch = torch

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **asked: Any) -> FinalsTimes:
        return replace(super().finals(problem, candidates, **asked), torch=self.torch)


def finished(api: Api) -> str:
    """The id of a job that has succeeded."""
    job_id = api.http.post("/jobs", json=body(budget={"trials": 8})).json()["id"]
    assert wait_until_final(api.service, job_id) == "succeeded"
    return str(job_id)


@pytest.mark.slow
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
            "calls": "eager",
            "is_library": False,
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


# In CI, another test has a simulated card without PyTorch, and what the log says.
@pytest.mark.soak
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
        assert "PyTorch was not timed: WorkerError: PyTorch cannot be imported" in page
        assert '<span class="name">PyTorch</span>' not in page
    assert f"{job_id}: PyTorch was not timed: {torch.reason}" in caplog.text


def test_a_result_without_the_setting_says_nothing_of_pytorch(api: Api) -> None:
    assert api.get(f"/jobs/{api.job_id}/best")["torch"] is None
    assert "PyTorch" not in api.http.get(f"/ui/jobs/{api.job_id}").text


class WithCompiled(SimulatedEvaluator):
    """A GPU on which torch.compile takes a fixed share of the library's time if a job asks for it."""

    def __init__(self, share: float) -> None:
        super().__init__(parse_target("simulated:h200"), seed=TWIN_SEED)
        self.share = share

    def finals(
        self, problem: Problem, candidates: tuple[Candidate, ...], *, num_rounds: int, torch_compile: bool = False
    ) -> FinalsTimes:
        times = super().finals(problem, candidates, num_rounds=num_rounds)
        if not torch_compile:
            return times
        library_us = times.times_us[0]
        assert library_us is not None
        beside = FinalsAnswer(
            times_us=times.times_us,
            reasons=times.reasons,
            num_dropped=0,
            others=(OtherTimes(times_us=tuple(self.share * us for us in library_us)),),
        )
        return beside_compiled(times, lambda: beside)


def finished_beside(api: Api) -> str:
    """The id of a job that asked for torch.compile and has succeeded."""
    asked = body(budget={"trials": 8}, objective={"torch_compile": True})
    job_id = api.http.post("/jobs", json=asked).json()["id"]
    assert wait_until_final(api.service, job_id) == "succeeded"
    assert api.get(f"/jobs/{job_id}")["objective"]["torch_compile"] is True
    return str(job_id)


# In CI, tests/unit/core/insight/test_verdict_words.py names it, and tests/unit/client/test_answers.py how to call it.
@pytest.mark.soak
def test_where_torch_compile_is_the_fastest_the_verdict_names_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data", evaluators=[WithCompiled(0.3)]) as api:
        job_id = finished_beside(api)
        best = api.get(f"/jobs/{job_id}/best")
        assert (best["verdict"], best["winner"]) == ("do not fuse", "library")
        assert best["sentence"].startswith("Do not fuse: run torch.compile; the best fused launch takes")
        library = best["finals"][0]
        assert best["torch"]["is_library"] is True
        assert best["torch"]["library_speedup"] == pytest.approx(0.3)
        assert best["torch"]["time_us"] == library["time_us"]
        assert "the library is torch.compile" in verdict_line(best)
        assert recipe_lines(best) == [
            "torch.compile with mode='max-autotune-no-cudagraphs' in a CUDA graph, 0.300 of the vendor library's time"
        ]
        page = api.http.get(f"/ui/jobs/{job_id}").text
        bars = re.findall(r'<span class="name">(.*?)</span>', page)
        assert bars.count("torch.compile") == 1
        assert "library" not in bars
        assert "0.300 of the vendor library" in page
        ours = min(row["time_us"] for row in best["finals"][1:] if row["time_us"])
        assert api.get(f"/jobs/{job_id}")["best_speedup"] == pytest.approx(library["time_us"] / ours, rel=0.05)


# In CI, another test has a verdict that names it.
@pytest.mark.soak
@pytest.mark.slow
def test_where_torch_compile_is_behind_the_library_it_is_a_figure_beside(tmp_path: Path) -> None:
    with serving(tmp_path / "data", evaluators=[WithCompiled(1.25)]) as api:
        best = api.get(f"/jobs/{finished_beside(api)}/best")
        assert (best["torch"]["calls"], best["torch"]["is_library"]) == ("compiled", False)
        over_library = best["finals"][best["winner_row"]]["speedup"]
        assert f"{1.25 * over_library:.2f} times torch.compile's speed" in best["sentence"]
        without = finished(api)
        assert api.get(f"/jobs/{without}/best")["torch"] is None
        assert "torch_compile" not in api.service.job(without).spec.to_json()


# In CI, tests/service/service/test_matching.py has such a result.
@pytest.mark.soak
def test_a_result_judged_against_torch_compile_answers_no_question_of_the_library_alone_exactly(tmp_path: Path) -> None:
    with serving(tmp_path / "data", evaluators=[WithCompiled(1.25)]) as api:
        finished_beside(api)
        asked = {name: value for name, value in body()["pair"].items() if name != "kind"}
        found = api.get("/best", params=asked | {"target": "simulated:h200", "match": "nearest"})
        assert found["match"] == "nearest"
        assert "compared with torch.compile, too" in found["differences"]


def test_a_simulated_gpu_says_that_it_has_no_pytorch(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        job_id = finished_beside(api)
    best = api.get(f"/jobs/{job_id}/best")
    assert (best["torch"]["calls"], best["torch"]["reason"]) == ("compiled", "a simulated GPU has no PyTorch")
    assert "; torch.compile was not timed: a simulated GPU has no PyTorch" in verdict_line(best)
    assert f"{job_id}: PyTorch was not timed: a simulated GPU has no PyTorch" in caplog.text
