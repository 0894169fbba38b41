"""Deleted jobs over HTTP: permissions, remaining data, and deletion by age and count."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from tests.service.api.test_access import Guarded, make_token, pair
from tests.service.service.helpers import Latch, evaluator
from tests.support.lanes import soak_unless
from tests.support.postgres import postgresql
from tests.support.serving import SMALL_PAIR, Server, body, listening, running_service, wait_until_final
from tests.support.waiting import wait_until
from tuner.client.cli import main
from tuner.core.access.caller import Role
from tuner.dispatch import LocalDispatcher
from tuner.service import Service, retention
from tuner.service.ladders.maker import LadderMaker
from tuner.settings import Retention
from tuner.store import Store

pytestmark = pytest.mark.slow


def test_what_is_deleted_is_gone_with_its_kernel_and_its_address_says_so(tmp_path: Path) -> None:
    with running_service(tmp_path / "data") as service, listening(service) as url, httpx.Client(base_url=url) as http:
        job_id = http.post("/jobs", json=body(), headers={"Idempotency-Key": "one"}).json()["id"]
        wait_until_final(service, job_id)
        digest = http.get(f"/jobs/{job_id}/best").json()["artifact"]["digest"]
        path = service._store.artifacts.path(digest)
        assert path.exists()
        gone = CliRunner().invoke(main, ["--url", url, "delete", job_id])
        assert gone.output == f"{job_id} deleted\n"
        for asked in ("", "/trials", "/trials/0/samples", "/events", "/best"):
            answer = http.get(f"/jobs/{job_id}{asked}")
            assert answer.status_code == 404, asked
            assert "was deleted at" in answer.json()["detail"], asked
        assert http.get("/best", params={**SMALL_PAIR, "target": "simulated:h200"}).status_code == 404
        assert http.get("/jobs").json()["items"] == []
        assert http.delete(f"/jobs/{job_id}").status_code == 404
        wait_until(lambda: not path.exists())
        again = http.post("/jobs", json=body(), headers={"Idempotency-Key": "one"})
        assert (again.status_code, again.json()["id"] == job_id) == (202, False)
        assert wait_until_final(service, again.json()["id"]) == "succeeded"


def test_an_open_job_is_refused_and_a_shared_one_stays_for_the_others(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", latency_s=5.0) as service, listening(service) as url:
        people = {"reader": ("rita", Role.READ), "alice": ("alice", Role.SUBMIT), "bob": ("bob", Role.SUBMIT),
                  "admin": ("root", Role.ADMIN)}  # fmt: skip
        secrets = {name: make_token(service, *who)[1] for name, who in people.items()}
        guarded = Guarded(url=url, service=service, secrets=secrets)
        path = "/jobs/" + guarded.ask("alice", "POST", "/jobs", json=pair(16)).json()["id"]
        refused = guarded.ask("alice", "DELETE", path)
        assert (refused.status_code, "cancel it before" in refused.json()["detail"]) == (409, True)
        assert [guarded.ask(who, "DELETE", path).status_code for who in ("", "reader", "bob")] == [401, 403, 403]
        guarded.ask("bob", "POST", "/jobs", json=pair(16))
        left = guarded.ask("alice", "DELETE", path)
        assert (left.status_code, left.json()["owners"], left.json()["state"] in ("queued", "searching")) == (
            200, ["bob"], True)  # fmt: skip
        assert guarded.ask("alice", "DELETE", path).status_code == 403
        assert guarded.ask("bob", "POST", f"{path}:cancel").status_code == 200
        assert guarded.ask("admin", "DELETE", path).status_code == 204
        found = guarded.ask("alice", "GET", path)
        assert (found.status_code, "by root" in found.json()["detail"]) == (404, True)
        entries = guarded.ask("admin", "GET", "/audit").json()["items"]
        assert [one["action"] for one in entries][:3] == ["job.delete", "job.cancel", "job.detach"]


def test_a_job_that_is_cancelled_and_deleted_at_the_card_harms_no_other(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", latency_s=0.3) as service, listening(service) as url:
        for _ in range(3):
            job_id = httpx.post(f"{url}/jobs", json=body(budget={"trials": 1000})).json()["id"]
            wait_until(lambda job_id=job_id: service.job(job_id).state == "searching")  # type: ignore[misc]
            httpx.post(f"{url}/jobs/{job_id}:cancel")
            assert httpx.delete(f"{url}/jobs/{job_id}").status_code == 204
        last = httpx.post(f"{url}/jobs", json=body(budget={"trials": 4})).json()["id"]
        assert wait_until_final(service, last) == "succeeded"
        assert httpx.get(f"{url}/livez").status_code == 200


# In CI, tests/unit/service/test_server.py does so without a card.
@pytest.mark.soak
def test_retention_deletes_the_oldest_and_spares_the_best_and_the_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RETENTION_PERIOD_S", 0.1)
    monkeypatch.setattr(retention, "PERIOD_S", 0.1)
    store = Store.open(tmp_path / "data")
    service = Service(store, LocalDispatcher([evaluator()]), retention=Retention(num_jobs=1))
    service.start()
    try:
        with listening(service) as url:
            ids = []
            for seed in range(3):  # the same problem twice, in sequence; one job has the best result
                ids.append(httpx.post(f"{url}/jobs", json=body(seed=seed)).json()["id"])
                wait_until_final(service, ids[-1])
            best = httpx.get(f"{url}/best", params={**SMALL_PAIR, "target": "simulated:h200"}).json()["best"]["job_id"]
            kept = {ids[-1], best}
            wait_until(lambda: {job.id for job in service.jobs().items} == kept)
            gone = next(job_id for job_id in ids if job_id not in kept)
            assert "of the ended jobs, the server keeps the newest 1" in httpx.get(f"{url}/jobs/{gone}").text
            actions = [(entry.action, entry.subject) for entry in service.access.entries().items]
            assert ("job.expire", gone) in actions
            again = httpx.get(f"{url}/best", params={**SMALL_PAIR, "target": "simulated:h200"}).json()["best"]["job_id"]
            assert again == best
    finally:
        service.close()


# In CI, tests/unit/test_settings.py reads the environment, and tests/unit/service/test_server.py keeps what it says.
@pytest.mark.soak
def test_a_server_keeps_as_many_jobs_as_its_environment_says(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--gpu", "simulated:h200", TUNER_KEEP_JOBS="0", TUNER_KEEP_BEST="false") as server:
        job_id = httpx.post(f"{server.url}/jobs", json=body(budget={"trials": 4})).json()["id"]
        url = f"{server.url}/jobs/{job_id}"
        wait_until(lambda: (answer := httpx.get(url)).status_code == 404 or answer.json()["finished_at"] is not None)
        server.stop()
    with Server(tmp_path / "data", "--gpu", "simulated:h200", TUNER_KEEP_JOBS="0", TUNER_KEEP_BEST="false") as server:
        wait_until(lambda: httpx.get(f"{server.url}/jobs/{job_id}").status_code == 404)
        assert httpx.get(f"{server.url}/readyz").status_code == 200


@pytest.mark.parametrize("database", soak_unless(lambda _, one: one == "postgresql", ["sqlite", "postgresql"]))
def test_a_deleted_batch_leaves_the_jobs_that_another_batch_or_a_single_request_needs(
    tmp_path: Path, database: str
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(postgresql()) if database == "postgresql" else None
        store = Store.open(tmp_path / "data", server.migrated_database() if server else None)
        latch = Latch()
        service = stack.enter_context(closing(Service(store, LocalDispatcher([latch]))))
        service.start()
        http = stack.enter_context(httpx.Client(base_url=stack.enter_context(listening(service))))

        def batch_of(*rows: int) -> str:
            shape = {name: size for name, size in SMALL_PAIR.items() if name not in ("kind", "m")}
            asked = {"shapes": [{**shape, "m": rows}], "budget": {"trials": 2}}
            return str(http.post("/batches", json=asked).json()["id"])

        def jobs_of(batch_id: str) -> dict[int, str]:
            return {one["m"]: one["job"]["id"] for one in http.get(f"/batches/{batch_id}/jobs").json()["items"]}

        first, second = batch_of(1, 4, 8), batch_of(4, 16)
        alone = http.post("/jobs", json=body(pair={**SMALL_PAIR, "m": 8}, budget={"trials": 2})).json()["id"]
        its, others = jobs_of(first), jobs_of(second)
        assert (its[4], its[8]) == (others[4], alone)
        refused = http.delete(f"/batches/{first}")
        assert (refused.status_code, "3 open jobs; cancel it first" in refused.text) == (409, True)
        latch.is_open.set()
        for batch_id in (first, second):
            wait_until(lambda batch_id=batch_id: service.batches.get(batch_id).state.is_final)  # type: ignore[misc]
        gone = http.delete(f"/batches/{first}")
        assert (gone.status_code, set(gone.json()["kept"])) == (200, {its[4], alone})
        assert [http.get(f"/batches/{one}").status_code for one in (first, second)] == [404, 200]
        assert [http.get(f"/jobs/{its[rows]}").status_code for rows in (1, 4, 8)] == [404, 200, 200]
        assert http.delete(f"/batches/{first}").status_code == 404
        assert http.delete(f"/batches/{second}").json() == {"id": second, "kept": []}
        assert [http.get(f"/jobs/{one}").status_code for one in (*others.values(), alone)] == [404, 404, 200]


def test_a_batch_is_deleted_while_its_ladders_are_made_only_if_it_was_cancelled_and_later_jobs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, plain = Event(), Event(), LadderMaker._ladder

    def late(*given: Any) -> Any:
        began.set()
        assert may_end.wait(60)
        return plain(*given)

    monkeypatch.setattr(LadderMaker, "_ladder", late)
    with running_service(tmp_path / "data") as service, listening(service) as url, httpx.Client(base_url=url) as http:
        shape = {name: size for name, size in SMALL_PAIR.items() if name not in ("kind", "m")}
        asked = {"shapes": [{**shape, "m": [1, 4]}], "budget": {"trials": 2}}
        batch_id = http.post("/batches", json=asked).json()["id"]
        assert began.wait(60)
        refused = http.delete(f"/batches/{batch_id}")
        assert (refused.status_code, "ladders without a result yet; cancel it first" in refused.text) == (409, True)
        assert http.post(f"/batches/{batch_id}:cancel").status_code == 200
        assert http.delete(f"/batches/{batch_id}").status_code == 200
        may_end.set()
        later = http.post("/jobs", json=body(pair={**SMALL_PAIR, "m": 16}, budget={"trials": 2})).json()["id"]
        wait_until_final(service, later)
        assert http.get("/readyz").status_code == 200


def test_a_deleted_batch_leaves_an_ended_job_that_another_owners_batch_reuses(tmp_path: Path) -> None:
    with running_service(tmp_path / "data") as service, listening(service) as url:
        people = {"alice": ("alice", Role.SUBMIT), "bob": ("bob", Role.SUBMIT)}
        secrets = {name: make_token(service, *who)[1] for name, who in people.items()}
        guarded = Guarded(url=url, service=service, secrets=secrets)
        shape = {name: size for name, size in SMALL_PAIR.items() if name not in ("kind", "m")}
        asked = {"shapes": [{**shape, "m": [1]}], "budget": {"trials": 2}}

        def ended(who: str, **more: Any) -> str:
            batch_id = str(guarded.ask(who, "POST", "/batches", json=asked | more).json()["id"])
            wait_until(lambda: service.batches.get(batch_id).state.is_final)
            return batch_id

        hers, his = ended("alice"), ended("bob", reuse=True)
        (item,) = guarded.ask("bob", "GET", f"/batches/{his}/jobs").json()["items"]
        gone = guarded.ask("alice", "DELETE", f"/batches/{hers}")
        assert (gone.status_code, gone.json()["kept"]) == (200, [item["job"]["id"]])
        (left,) = guarded.ask("bob", "GET", f"/batches/{his}/jobs").json()["items"]
        assert left["job"]["id"] == item["job"]["id"]
