"""Submitting, listing, filtering and cancelling jobs."""

from __future__ import annotations

import pytest

from tests.service.api.conftest import NUM_TRIALS, Api
from tests.support.serving import SMALL_PAIR, body, wait_until_final
from tuner.core.problem.tile_op import MAX_ELEMENTS
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Regime

FUSED = PlanKind.FUSED
LONG = {"trials": 1000, "seconds": 600}


def test_a_new_job_is_accepted_and_says_where_it_is(slow_api: Api) -> None:
    response = slow_api.http.post("/jobs", json=body())
    assert response.status_code == 202
    assert response.headers["location"] == f"/jobs/{response.json()['id']}"
    assert slow_api.get(response.headers["location"])["pair"] == {
        **SMALL_PAIR,
        "activation": "identity",
        **dict.fromkeys(("bias", "gated", "residual", "row_scale"), False),
    }


def test_an_open_problem_posted_again_answers_the_job_that_exists(slow_api: Api) -> None:
    first = slow_api.http.post("/jobs", json=body(budget=LONG))
    again = slow_api.http.post("/jobs", json=body(budget={"trials": 5}, seed=7))
    other = slow_api.http.post("/jobs", json=body(budget=LONG, objective={"l2": "warm"}))
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert again.headers["location"] == first.headers["location"]
    assert other.status_code == 202


def test_a_finished_problem_gives_a_new_job_unless_reuse_is_asked_for(api: Api) -> None:
    reused = api.http.post("/jobs", json=body(reuse=True))
    assert (reused.status_code, reused.json()["id"]) == (200, api.job_id)
    fresh = api.http.post("/jobs", json=body(budget={"trials": 4}))
    assert fresh.status_code == 202
    wait_until_final(api.service, fresh.json()["id"])


def test_an_idempotency_key_gives_the_same_job_again_and_refuses_another_body(api: Api) -> None:
    key = {"Idempotency-Key": "once"}
    first = api.http.post("/jobs", json=body(seed=3), headers=key)
    wait_until_final(api.service, first.json()["id"])
    spelled_out = body(seed=3, reuse=False, target=None)
    again = api.http.post("/jobs", json=spelled_out, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    other = api.http.post("/jobs", json=body(seed=4), headers=key)
    assert other.status_code == 422
    assert other.json()["errors"][0]["field"] == "Idempotency-Key"


@pytest.mark.slow
def test_what_is_left_out_has_a_default(api: Api) -> None:
    small, large = (
        api.http.post("/jobs", json={"pair": {**SMALL_PAIR, "m": m}, "budget": {"trials": 4}}).json() for m in (8, 256)
    )
    assert small["target"] == "simulated:h200"
    usual = {"l2": "cold", "regime": Regime.BURST, "energy_within_percent": None, "torch_compile": False}
    assert small["objective"].items() >= usual.items()
    assert large["objective"]["regime"] == Regime.SUSTAINED
    assert small["budget"]["seconds"] == 600
    for job in (small, large):
        wait_until_final(api.service, job["id"])


# In CI, tests/unit/core/space has spaces of independent pairs.
@pytest.mark.soak
def test_an_independent_pair_is_tuned_too(api: Api) -> None:
    gemms = {"first": {"m": 64, "n": 128, "k": 64}, "second": {"m": 32, "n": 64, "k": 128}}
    pair = {"kind": "independent", **gemms, "dtype": "bf16"}
    job = api.http.post("/jobs", json={"pair": pair, "budget": {"trials": 6}}).json()
    assert wait_until_final(api.service, job["id"]) == "succeeded"
    assert api.get(f"/jobs/{job['id']}")["pair"] == pair
    found = api.get("/best?kind=independent&first=64,128,64&second=32,64,128&dtype=bf16")
    assert found["best"]["job_id"] == job["id"]


def test_jobs_are_listed_newest_first_in_pages(idle_api: Api) -> None:
    assert idle_api.get("/jobs") == {"items": [], "next_cursor": None}


def test_pages_of_a_listing_join_up(api: Api) -> None:
    every = api.get("/jobs")["items"]
    assert [job["created_at"] for job in every] == sorted((job["created_at"] for job in every), reverse=True)
    joined: list[object] = []
    cursor = None
    while cursor is not None or not joined:
        page = api.get("/jobs", params={"limit": 1} | ({"cursor": cursor} if cursor else {}))
        joined += page["items"]
        cursor = page["next_cursor"]
    assert joined == every


def test_jobs_are_filtered_by_state(api: Api) -> None:
    assert all(job["state"] == "succeeded" for job in api.get("/jobs?state=succeeded")["items"])
    assert api.get("/jobs?state=failed")["items"] == []


def test_trials_are_filtered_and_sorted(api: Api) -> None:
    path = f"/jobs/{api.job_id}/trials"
    every = api.get(path)["items"]
    assert [trial["number"] for trial in every] == list(range(NUM_TRIALS))
    assert all(trial["simulated"] for trial in every)
    fused = api.get(path, params={"outcome": "measured", "plan_kind": "fused", "sort": "time"})["items"]
    times = [trial["outcome"]["time_us"] for trial in fused]
    assert times == sorted(times)
    assert {trial["candidate"]["plan_kind"] for trial in fused} == {"fused"}
    assert len(times) < len(every)


def test_a_trial_says_its_schedule_as_data_and_in_words(api: Api) -> None:
    library, ours = api.get(f"/jobs/{api.job_id}/trials?sort=number&outcome=measured")["items"][:2]
    assert library["candidate"] == {
        "plan_kind": "library",
        "schedule": None,
        "text": "",
        "words": ["The vendor library's calls, one per op, in a CUDA graph."],
    }
    assert ours["candidate"]["schedule"]["tiling"]["tiles"][0]["m"] >= 16
    assert any(sentence.startswith("Tiles: up in tiles of") for sentence in ours["candidate"]["words"])


# In CI, tests/unit/service/test_server.py cancels a job twice, and another test refuses it of a finished one.
@pytest.mark.soak
def test_a_cancelled_job_stays_so_and_a_finished_one_cannot_be(slow_api: Api) -> None:
    path = slow_api.http.post("/jobs", json=body(budget=LONG)).headers["location"]
    assert slow_api.http.post(f"{path}:cancel").json()["state"] == "cancelled"
    assert slow_api.http.post(f"{path}:cancel").json()["state"] == "cancelled"
    problem = slow_api.http.get(f"{path}/best")
    assert (problem.status_code, "cancelled" in problem.json()["detail"]) == (404, True)


def test_a_finished_job_cannot_be_cancelled(api: Api) -> None:
    response = api.http.post(f"/jobs/{api.job_id}:cancel")
    assert response.status_code == 409
    assert "succeeded" in response.json()["detail"]


def test_a_server_without_a_gpu_asks_for_a_target_and_says_that_it_serves_none(idle_api: Api) -> None:
    missing = idle_api.http.post("/jobs", json=body())
    unserved = idle_api.http.post("/jobs", json=body(target="h200"))
    assert (missing.status_code, unserved.status_code) == (422, 422)
    assert missing.json()["errors"][0]["field"] == unserved.json()["errors"][0]["field"] == "target"
    assert idle_api.get("/jobs")["items"] == []


@pytest.mark.parametrize("size", [1, MAX_ELEMENTS])
def test_the_bounds_of_a_size_are_inside(idle_api: Api, size: int) -> None:
    pair = {"kind": "ffn", "m": 1, "d_in": 1, "d_hidden": 1, "d_out": size}
    errors = idle_api.http.post("/jobs", json={"pair": pair}).json()["errors"]
    assert [error["field"] for error in errors] == ["target"]  # the last check


# In CI, tests/service/service/test_priors.py has what each prior gave.
@pytest.mark.soak
def test_a_job_says_which_priors_it_used_what_each_gave_and_whether_it_is_fair(api: Api) -> None:
    pair = {**body()["pair"], "m": 24}
    used = {}
    for priors in ("nearest", "none"):
        job = api.http.post("/jobs", json=body(pair=pair, priors=priors)).json()
        assert job["priors"] == priors
        wait_until_final(api.service, job["id"])
        used[priors] = api.get(f"/jobs/{job['id']}")["priors_used"]
        by_number = {trial["number"]: trial for trial in api.get(f"/jobs/{job['id']}/trials")["items"]}
        for index, prior in enumerate(used[priors]):
            trial = by_number[prior["trial_number"]]
            assert (trial["prior"], trial["candidate"]) == (index, prior["candidate"])
            assert prior["outcome"] == trial["outcome"]["kind"]
            assert prior["time_us"] == trial["outcome"].get("time_us")
            assert prior["simulated"] is True
        page = api.http.get(f"/ui/jobs/{job['id']}").text
        assert page.count(' id="priors">') == (priors == "nearest")
    assert 1 <= len(used["nearest"]) <= 3
    assert all(prior["source"].startswith("job-") for prior in used["nearest"])
    assert used["none"] == []


def test_a_job_says_how_well_its_trials_were_forecast_or_that_they_are_too_few(api: Api) -> None:
    forecast = api.get(f"/jobs/{api.job_id}")["forecast"]
    assert forecast["num_trials"] == len(api.service.trials(api.job_id, outcome="measured", plan_kind=FUSED).items) > 0
    assert (forecast["rank_correlation"], forecast["regret"]) == (None, None)
    assert forecast["reason"].startswith("too few")
    assert "forecast" not in api.get("/jobs")["items"][0]
