"""Many jobs as one piece of work: how far it is, how long it will take, and which jobs are asked about."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tuner.client.batch import Batch, _updates, follow, shape_bodies
from tuner.packs.contents import Shape


def job(number: int, state: str, done: int = 0) -> dict[str, Any]:
    return {
        "id": f"job-{number}",
        "state": state,
        "num_trials": done,
        "budget": {"trials": 10},
        "created_at": f"2026-01-01T00:00:0{number}Z",
        "workload": f"pair {number}",
        "simulated": False,
        "best_us": None,
        "library_us": None,
    }


def batch(*jobs: dict[str, Any]) -> Batch:
    return Batch(jobs={one["id"]: one for one in jobs}, begun_at=100.0)


def test_a_job_that_ended_early_needs_no_more_waiting_for_the_rest_of_its_budget() -> None:
    found = batch(job(1, "succeeded", 4), job(2, "failed"), job(3, "searching", 3), job(4, "queued"))
    assert (found.num_done, found.num_trials) == (23, 40)
    assert found.line().startswith("2 of 4 jobs; pair 3: ")


def test_what_is_left_goes_at_the_pace_since_it_was_begun() -> None:
    found = batch(job(1, "succeeded"), job(2, "searching", 2), job(3, "queued"))
    assert found.eta_s(110.0) is None
    found.jobs["job-2"] = job(2, "searching", 6)
    assert found.eta_s(110.0) == (30 - 16) * 10 / 4


class Answers:
    """Answers as a service does whose jobs end one after the other, and counts the questions."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs = {one["id"]: one for one in jobs}
        self.asked: list[str] = []

    def job(self, job_id: str) -> dict[str, Any]:
        self.asked.append(job_id)
        if self.jobs[job_id]["state"] != "queued":
            self.jobs[job_id] = {**self.jobs[job_id], "state": "succeeded"}
            waiting = next((one for one in self.jobs.values() if one["state"] == "queued"), None)
            if waiting is not None:
                waiting["state"] = "searching"
        return dict(self.jobs[job_id])


def test_all_jobs_are_followed_to_their_ends_and_answered_in_the_order_they_were_given(monkeypatch: Any) -> None:
    monkeypatch.setattr("tuner.client.batch._ASK_EVERY_S", 0.0)
    jobs = [job(2, "queued"), job(1, "searching"), job(3, "queued")]
    client: Any = Answers(*(dict(one) for one in jobs))
    shown = io.StringIO()
    done = follow(client, jobs, Console(file=shown, width=200))
    assert [(one["id"], one["state"]) for one in done] == [(f"job-{n}", "succeeded") for n in (2, 1, 3)]
    assert "30/30 trials; 3 of 3 jobs" in shown.getvalue()
    assert client.asked[0] == "job-1"


def test_nobody_asks_about_jobs_behind_one_that_waits() -> None:
    client: Any = Answers(job(1, "queued"), job(2, "queued"))
    found = batch(*client.jobs.values())
    next(_updates(client, found, lambda: 0.0))
    assert client.asked == ["job-1"]


def test_there_is_a_job_for_each_shape_and_m_the_shape_of_most_layers_first() -> None:
    few, many = (Shape(dtype="fp16", activation="silu", d_in=64, d_hidden=n, d_out=64, gated=True) for n in (64, 128))
    bodies = shape_bodies({few: 2, many: 30}, (1, 8), budget={"trials": 5}, target="h200", l2=None, reuse=True)
    assert [(body["pair"]["d_hidden"], body["pair"]["m"]) for body in bodies] == [(128, 1), (128, 8), (64, 1), (64, 8)]
    assert {"kind", "m", "gated", "dtype"} <= bodies[0]["pair"].keys()
    assert (bodies[0]["target"], bodies[0]["objective"], bodies[0]["reuse"]) == ("h200", {}, True)
