"""Tokens and quotas through the API, the dashboard and the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from tests.service.api.test_access import Guarded, make_token, pair
from tests.support.serving import listening, running_service
from tuner.cli import main
from tuner.core.access.caller import Role
from tuner.service.submission.authorization import REMEMBERED_S
from tuner.store.tables.models import JobRow


@contextmanager
def serving(path: Path) -> Iterator[Guarded]:
    """A server with tokens that measures nothing, so its jobs stay as they are."""
    with running_service(path / "data", latency_s=3.0) as service, listening(service) as url:
        people = {"alice": ("alice", Role.SUBMIT), "bob": ("bob", Role.SUBMIT), "admin": ("root", Role.ADMIN)}
        secrets = {name: make_token(service, *who)[1] for name, who in people.items()}
        yield Guarded(url=url, service=service, secrets=secrets)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A server for one test."""
    with serving(tmp_path) as guarded:
        yield guarded


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server for tests that change nothing, since all of their requests are refused."""
    with serving(tmp_path_factory.mktemp("refusing")) as guarded:
        yield guarded


def submit(guarded: Guarded, who: str, m: int, **changes: Any) -> httpx.Response:
    return guarded.ask(who, "POST", "/jobs", json={**pair(m), **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tokens"),
        ("POST", "/tokens"),
        ("POST", "/tokens/tok-0:revoke"),
        ("GET", "/quotas"),
        ("PUT", "/quotas/owner/alice"),
        ("DELETE", "/quotas/owner/alice"),
        ("GET", "/ui/access"),
        ("GET", "/ui/access.json"),
        ("POST", "/ui/access/tokens"),
        ("POST", "/ui/access/tokens/tok-0/revoke"),
        ("POST", "/ui/access/quotas"),
        ("POST", "/ui/access/quotas/drop"),
    ],
)
def test_tokens_and_quotas_are_for_admins(refusing: Guarded, method: str, path: str) -> None:
    assert refusing.ask("alice", method, path).status_code == 403
    assert refusing.ask("", method, path).status_code == 401


@pytest.mark.slow
def test_a_token_made_by_the_api_is_taken_until_it_is_revoked(guarded: Guarded) -> None:
    asked = {"owner": "carol", "role": "submit", "note": "laptop", "days": 90}
    answer = guarded.ask("admin", "POST", "/tokens", json=asked)
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    made = answer.json()
    headers = {"Authorization": f"Bearer {made['secret']}"}
    assert httpx.get(f"{guarded.url}/whoami", headers=headers).json()["owner"] == "carol"
    listed = guarded.ask("admin", "GET", "/tokens")
    assert made["secret"] not in listed.text
    assert [(one["owner"], one["note"]) for one in listed.json()][-1] == ("carol", "laptop")
    token_id = made["token"]["id"]
    assert guarded.ask("admin", "POST", f"/tokens/{token_id}:revoke").json()["is_valid"] is False
    assert httpx.get(f"{guarded.url}/whoami", headers=headers).status_code == 401  # immediately, not a second later
    assert guarded.ask("admin", "POST", "/tokens/tok-none:revoke").status_code == 404
    actions = [one["action"] for one in guarded.ask("admin", "GET", "/audit").json()["items"]]
    assert actions == ["token.revoke", "token.create"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"owner": ""}, "owner"), ({"owner": " x"}, "owner"), ({"role": "king"}, "role"), ({"days": 0}, "days")],
)
def test_a_token_that_cannot_be_is_refused_by_its_field(refusing: Guarded, changes: dict[str, Any], field: str) -> None:
    answer = refusing.ask("admin", "POST", "/tokens", json={"owner": "x", "role": "read", **changes})
    assert (answer.status_code, [one["field"] for one in answer.json()["errors"]]) == (422, [field])


@pytest.mark.slow
def test_more_open_jobs_than_an_owners_quota_are_refused_and_a_cancelled_one_makes_room(guarded: Guarded) -> None:
    assert guarded.ask("admin", "PUT", "/quotas/owner/alice", json={"open_jobs": 2}).status_code == 204
    first = submit(guarded, "alice", 16).json()["id"]
    submit(guarded, "alice", 32).raise_for_status()
    refused = submit(guarded, "alice", 48)
    assert refused.status_code == 403
    assert refused.json()["detail"].startswith("alice already has 2 open jobs, and the quota is 2; wait until one ends")
    assert submit(guarded, "bob", 48).status_code == 202
    assert submit(guarded, "alice", 48).status_code == 200  # alice shares bob's run, which costs no card time
    assert guarded.ask("alice", "POST", f"/jobs/{first}:cancel").status_code == 200
    assert submit(guarded, "alice", 64).status_code == 403  # three, less one
    (quota,) = guarded.ask("admin", "GET", "/quotas").json()
    assert (quota["name"], quota["used_open_jobs"], quota["open_jobs"]) == ("alice", 2, 2)
    assert guarded.ask("admin", "DELETE", "/quotas/owner/alice").status_code == 204
    assert submit(guarded, "alice", 64).status_code == 202
    assert guarded.ask("admin", "DELETE", "/quotas/owner/alice").status_code == 404


@pytest.mark.slow
def test_a_batch_is_held_against_the_quota_as_a_whole(guarded: Guarded) -> None:
    guarded.ask("admin", "PUT", "/quotas/owner/*", json={"open_jobs": 3})
    shape = {"d_in": 128, "d_hidden": 256, "d_out": 128}
    refused = guarded.ask("alice", "POST", "/batches", json={"shapes": [{**shape, "m": [1, 2, 4, 8]}]})
    assert (refused.status_code, "alice already has 3 open jobs" in refused.json()["detail"]) == (403, True)
    assert guarded.ask("alice", "GET", "/jobs").json()["items"] == []
    assert guarded.ask("alice", "POST", "/batches", json={"shapes": [{**shape, "m": [1, 2, 4]}]}).status_code == 202


@pytest.mark.slow
def test_a_projects_quota_holds_for_all_of_its_people_and_not_for_admins(guarded: Guarded) -> None:
    guarded.ask("admin", "PUT", "/quotas/project/llama/3", json={"open_jobs": 1}).raise_for_status()
    assert submit(guarded, "alice", 16, project="llama/3").status_code == 202
    refused = submit(guarded, "bob", 32, project="llama/3")
    assert (refused.status_code, "llama/3 already has 1 open job," in refused.json()["detail"]) == (403, True)
    assert submit(guarded, "bob", 32).status_code == 202
    assert submit(guarded, "admin", 48, project="llama/3").status_code == 202


@pytest.mark.slow
def test_card_time_of_the_last_day_counts(guarded: Guarded) -> None:
    guarded.ask("admin", "PUT", "/quotas/owner/alice", json={"card_hours_per_day": 1}).raise_for_status()
    job_id = submit(guarded, "alice", 16).json()["id"]
    assert submit(guarded, "alice", 32).status_code == 202
    with guarded.service._store.write() as session:
        row = session.query(JobRow).filter_by(id=job_id).one()
        row.card_s = 3600.0
    refused = submit(guarded, "alice", 48)
    assert (refused.status_code, "1.00 card hours, and the quota is 1;" in refused.json()["detail"]) == (403, True)
    with guarded.service._store.write() as session:
        session.query(JobRow).filter_by(id=job_id).one().created_at -= 25 * 3600
    assert submit(guarded, "alice", 48).status_code == 202


@pytest.mark.parametrize("body", [{}, {"open_jobs": -1}, {"card_hours_per_day": -1}, {"trials": 3}])
def test_a_quota_that_cannot_be_is_refused(refusing: Guarded, body: dict[str, Any]) -> None:
    assert refusing.ask("admin", "PUT", "/quotas/owner/alice", json=body).status_code == 422
    assert refusing.ask("admin", "PUT", "/quotas/planet/earth", json={"open_jobs": 1}).status_code == 422


@pytest.mark.slow
def test_forms_of_the_page_make_and_revoke_tokens_and_set_quotas(guarded: Guarded) -> None:
    def form(path: str, **fields: str) -> httpx.Response:
        return guarded.ask("admin", "POST", f"/ui/access/{path}", data=fields)

    made = form("tokens", owner="dave", role="read", days="3", note="")
    assert (made.status_code, "tuner_" in made.text) == (200, True)
    page = guarded.ask("admin", "GET", "/ui/access.json").json()
    token = next(one for one in page["tokens"] if one["owner"] == "dave")
    assert (token["role"], token["is_valid"], page["made"]) == ("read", True, None)
    assert form(f"tokens/{token['id']}/revoke").status_code == 303
    assert form("quotas", scope="project", name="llama", open_jobs="5").status_code == 303
    assert form("quotas", scope="project", name="llama", card_hours_per_day="x").status_code == 422
    assert form("quotas", scope="planet", name="llama", open_jobs="5").status_code == 422
    assert form("tokens", owner="dave", role="king").status_code == 422
    page = guarded.ask("admin", "GET", "/ui/access.json").json()
    assert [(one["scope"], one["name"], one["open_jobs"]) for one in page["quotas"]] == [("project", "llama", 5)]
    assert not next(one for one in page["tokens"] if one["owner"] == "dave")["is_valid"]
    assert form("quotas/drop", scope="project", name="llama").status_code == 303
    assert guarded.ask("admin", "GET", "/quotas").json() == []


def test_the_first_token_is_made_by_the_page_and_closes_the_door(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", target=None) as service, listening(service) as url:
        made = httpx.post(f"{url}/tokens", json={"owner": "root", "role": "admin"}).json()
        assert httpx.get(f"{url}/jobs").status_code == 401
        headers = {"Authorization": f"Bearer {made['secret']}"}
        assert httpx.get(f"{url}/jobs", headers=headers).status_code == 200


@pytest.mark.slow
def test_a_quota_of_the_command_line_holds_in_a_running_server_within_a_second(guarded: Guarded) -> None:
    submit(guarded, "alice", 16).raise_for_status()
    data = str(guarded.service._store.directory)

    def quota(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["quota", *arguments, "--data", data])
        assert result.exit_code == 0, result.output
        return result.stdout

    quota("set", "owner", "alice", "--open-jobs", "1")
    assert quota("list").splitlines()[1].split() == ["owner", "alice", "1", "any"]
    assert '"open_jobs": 1' in quota("list", "--json")
    time.sleep(REMEMBERED_S)
    assert submit(guarded, "alice", 32).status_code == 403
    quota("drop", "owner", "alice")
    assert quota("list", "--json") == ""
    nothing = CliRunner().invoke(main, ["quota", "set", "owner", "alice", "--data", data])
    assert (nothing.exit_code, "no limit was set" in nothing.output) == (1, True)
