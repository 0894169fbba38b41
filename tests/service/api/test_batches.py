"""Batches over HTTP: states, pages, events and refusals."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.api.conftest import Api, serving
from tests.support.serving import SMALL_PAIR
from tests.support.waiting import wait_until
from tuner.client.follow.batch import line
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import FinalsTimes, Problem
from tuner.core.trial.ladders.batch import FINALS_S
from tuner.workers.simulated.evaluator import SimulatedEvaluator

SHAPE = {name: value for name, value in SMALL_PAIR.items() if name not in ("kind", "m")}
BODY: dict[str, Any] = {"shapes": [{**SHAPE, "m": [8, 16]}], "budget": {"trials": 6}, "project": "ladders"}
#: A batch that is still open when it is requested again.
LONG = {**BODY, "budget": {"trials": 1000}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, str]]:
    """A service with a finished batch."""
    with serving(tmp_path_factory.mktemp("batches") / "data") as api:
        answer = api.http.post("/batches", json=BODY)
        assert answer.status_code == 202, answer.text
        batch = answer.json()
        assert answer.headers["location"] == batch["links"]["self"] == f"/batches/{batch['id']}"
        wait_until(lambda: api.get(f"/batches/{batch['id']}")["state"] == "succeeded")
        yield api, batch["id"]


Done = tuple[Api, str]


@pytest.mark.slow
def test_a_batch_answers_every_number_of_rows_and_marks_what_is_simulated(done: Done) -> None:
    api, batch_id = done
    best = api.get(f"/batches/{batch_id}/best")
    assert (best["id"], best["simulated"], best["is_complete"]) == (batch_id, True, True)
    (ladder,) = best["ladders"]
    assert [(rung["m_lo"], rung["m_hi"]) for rung in ladder["rungs"]] == [(1, 4), (5, 8), (9, 16)]
    assert [gain["m"] for gain in ladder["gains"]] == [8, 16]
    assert all(gain["speedup"] > 0 for gain in ladder["gains"])
    assert ladder["least_kernels"] == len(ladder["kernels"])


@pytest.mark.slow
def test_its_jobs_and_all_batches_are_listed_page_by_page(done: Done) -> None:
    api, batch_id = done
    first = api.get(f"/batches/{batch_id}/jobs", params={"limit": 1})
    second = api.get(f"/batches/{batch_id}/jobs", params={"limit": 1, "cursor": first["next_cursor"]})
    assert {one["m"] for page in (first, second) for one in page["items"]} == {8, 16}
    assert second["next_cursor"] is None
    assert [one["id"] for one in api.get("/batches", params={"project": "ladders"})["items"]] == [batch_id]
    assert api.get("/batches", params={"owner": "nobody"})["items"] == []


def test_a_job_of_a_ladder_that_shared_trials_has_no_more_of_them_than_there_are(done: Done) -> None:
    api, batch_id = done
    jobs = [one["job"] for one in api.get(f"/batches/{batch_id}/jobs")["items"]]
    most = max(jobs, key=lambda job: job["num_trials"])
    assert most["num_trials"] > BODY["budget"]["trials"]
    page = api.http.get(f"/ui/batches/{batch_id}", headers={"accept": "text/html"}).text
    assert f'aria-label="{most["num_trials"]} trials"' in page
    assert f"{most['num_trials']} / " not in page


def test_its_events_are_those_of_all_its_jobs_and_resume(done: Done) -> None:
    api, batch_id = done
    text = api.http.get(f"/batches/{batch_id}/events").text
    jobs = {one["job"]["id"] for one in api.get(f"/batches/{batch_id}/jobs")["items"]}
    assert text.rstrip().endswith("data: {}")
    assert all(f'"job_id":"{job_id}"' in text for job_id in jobs)
    ids = [int(line.partition(":")[2]) for line in text.splitlines() if line.startswith("id:")]
    assert ids == sorted(set(ids))
    last = {"Last-Event-ID": str(ids[-1])}
    assert api.http.get(f"/batches/{batch_id}/events", headers=last).status_code == 204


def test_a_batch_says_for_which_share_of_its_searches_the_card_was_busy(done: Done) -> None:
    api, batch_id = done
    jobs = [one["job"] for one in api.get(f"/batches/{batch_id}/jobs")["items"]]
    busy_s = sum(job["card_share"] * job["search_s"] for job in jobs)
    batch = api.get(f"/batches/{batch_id}")
    assert batch["search_s"] == pytest.approx(sum(job["search_s"] for job in jobs))
    assert batch["card_share"] == pytest.approx(busy_s / batch["search_s"])
    assert batch["card_share"] > 0


class LongFinals(SimulatedEvaluator):
    """Finals take `FINALS_S`; the second finals wait until they are released."""

    FINALS_S = 0.6

    def __init__(self) -> None:
        super().__init__(parse_target("simulated:h200"))
        self.num_begun = 0
        self.may_end = threading.Event()

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **asked: Any) -> FinalsTimes:
        self.num_begun += 1
        time.sleep(self.FINALS_S)
        if self.num_begun > 1:
            self.may_end.wait(120)
        return super().finals(problem, candidates, **asked)

    def close(self) -> None:
        self.may_end.set()


# In CI, tests/unit/core/test_ladders.py has what is left.
@pytest.mark.soak
def test_what_is_left_of_a_batch_counts_finals_by_those_that_were_held_wherever_it_is_shown(tmp_path: Path) -> None:
    twin = LongFinals()
    with serving(tmp_path / "data", evaluators=[twin]) as api:
        batch = api.http.post("/batches", json=BODY).json()
        wait_until(lambda: twin.num_begun == 2)
        found = api.get(batch["links"]["self"])
        assert (found["num_planned"], found["jobs_by_state"]) == (found["num_trials"], {"finals": 1, "succeeded": 1})
        assert found["eta_s"] >= LongFinals.FINALS_S
        assert found["eta_s"] != FINALS_S, "what is taken before the first"
        left = f"about {found['eta_s']:.0f} s left"
        assert left in line(found)
        assert (
            left.removeprefix("about ")
            in api.http.get(f"/ui{batch['links']['self']}", headers={"accept": "text/html"}).text
        )
        assert 'data-every-ms="3000"' in api.http.get("/ui/batches", headers={"accept": "text/html"}).text
        twin.may_end.set()
        wait_until(lambda: api.get(batch["links"]["self"])["state"] == "succeeded")
        assert api.get(batch["links"]["self"])["eta_s"] is None


def test_a_batch_has_a_page_and_its_json_form(done: Done) -> None:
    api, batch_id = done
    page = api.http.get(f"/ui/batches/{batch_id}", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "<h2>Up to ffn fp16" in page.text
    assert ("fewer rows" in page.text, "<th>Rows</th>" in page.text) == (False, False)
    (ladder,) = api.get(f"/batches/{batch_id}/best")["ladders"]
    assert ("No generated kernel: the library runs:" in page.text) is (not ladder["kernels"])
    assert "0 kernels" not in page.text
    assert re.search(r"s of search, the card busy for \d+ % of it", page.text)
    assert "simulated" in page.text
    assert api.get(f"/ui/batches/{batch_id}.json")["ladders"] == api.get(f"/batches/{batch_id}/best")["ladders"]
    assert batch_id in api.http.get("/ui/batches", headers={"accept": "text/html"}).text
    assert api.get("/ui/batches.json")["batches"]["items"][0]["id"] == batch_id


@pytest.mark.slow
def test_ending_a_batch_that_has_ended_is_a_conflict_and_an_open_one_is_the_same_batch(
    done: Done, slow_api: Api
) -> None:
    api, batch_id = done
    assert api.http.post(f"/batches/{batch_id}:cancel").status_code == 409
    first = slow_api.http.post("/batches", json=LONG, headers={"Idempotency-Key": "k"})
    again = slow_api.http.post("/batches", json=LONG, headers={"Idempotency-Key": "k"})
    same = slow_api.http.post("/batches", json=LONG)
    assert (first.status_code, again.status_code, same.status_code) == (202, 200, 200)
    assert first.json()["id"] == again.json()["id"] == same.json()["id"]
    other = slow_api.http.post("/batches", json={**LONG, "seed": 1}, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    path = f"/batches/{first.json()['id']}"
    assert slow_api.http.get(f"{path}/best").status_code == 404
    assert slow_api.http.post(f"{path}:cancel").json()["state"] == "cancelled"
    jobs = slow_api.get(f"{path}/jobs")["items"]
    assert {one["job"]["state"] for one in jobs} == {"cancelled"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"shapes": []}, "shapes", "add a shape with its m, or a pair"),
        ({"shapes": [{**SHAPE, "m": []}]}, "shapes.0.m", "at least 1"),
        ({"shapes": [{**SHAPE, "m": [0]}]}, "shapes.0.m.0", "at least 1"),
        ({"shapes": [{**SHAPE, "m": [16, 32, 16]}]}, "shapes.0.m.2", "as shapes.0.m.0 already does"),
        ({"shapes": [], "pairs": [SMALL_PAIR, SMALL_PAIR]}, "pairs.1", "as pairs.0 already does"),
        ({"shapes": [{**SHAPE, "d_in": size, "m": list(range(1, 1025))} for size in (8, 16)]}, "shapes", "2048 jobs"),
        ({"shapes": [{**SHAPE, "m": [2**23]}]}, "shapes.0", "overflow"),
        ({"pairs": [{**SMALL_PAIR, "m": 0}]}, "pairs.0.m", "at least 1"),
        ({"neighbour_trials": 0}, "neighbour_trials", "at least 1"),
        ({"target": "simulated:a100"}, "target", "no worker of this server"),
        ({"rows": [1]}, "rows", "check its spelling"),
    ],
)
def test_what_cannot_be_a_batch_is_a_problem_that_names_the_field(
    done: Done, changes: dict[str, Any], field: str, words: str
) -> None:
    api, _ = done
    response = api.http.post("/batches", json={**BODY, **changes})
    assert response.status_code == 422, response.text
    assert field in {one["field"] for one in response.json()["errors"]}
    assert words in response.text


def test_there_is_no_batch_of_another_name(done: Done) -> None:
    api, _ = done
    for path in ("/batches/batch-0", "/batches/batch-0/best", "/batches/batch-0/jobs", "/ui/batches/batch-0"):
        assert api.http.get(path).status_code == 404
    assert api.http.post("/batches/batch-0:cancel").status_code == 404
