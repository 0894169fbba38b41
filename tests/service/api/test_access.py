"""Tokens: authorization, ownership of jobs, and the entries of the audit log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serving import SMALL_PAIR, body, listening, running_service
from tuner.core.access.caller import Role
from tuner.service import Service
from tuner.service.submission.authorization import REMEMBERED_S
from tuner.store.access import tokens
from tuner.wire.requests.problems import MEDIA_TYPE


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A server that requires tokens, and one token of each kind."""

    url: str
    service: Service
    secrets: dict[str, str]

    def ask(self, who: str, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}
        return httpx.request(method, f"{self.url}{path}", headers={**options.pop("headers", {}), **headers}, **options)


def make_token(service: Service, owner: str, role: Role, expires_at: float | None = None) -> tuple[str, str]:
    """The id and secret of a new token."""
    with service._store.write() as session:
        token, secret = tokens.create(session, owner, role, time.time(), expires_at=expires_at)
    return token.id, secret


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with tokens whose jobs stay open, because each trial is slow."""
    path: Path = tmp_path_factory.mktemp("access") / "data"
    with running_service(path, latency_s=5.0) as service, listening(service) as url:
        people = {"reader": ("rita", Role.READ), "alice": ("alice", Role.SUBMIT), "bob": ("bob", Role.SUBMIT),
                  "machine": ("rack7", Role.WORKER), "admin": ("root", Role.ADMIN)}  # fmt: skip
        secrets = {name: make_token(service, *who)[1] for name, who in people.items()}
        yield Guarded(url=url, service=service, secrets=secrets)


def pair(m: int) -> dict[str, Any]:
    return body(pair={**SMALL_PAIR, "m": m})


MAY = [
    ("", "/livez", 200), ("", "/readyz", 200), ("", "/openapi.json", 200), ("", "/login", 200), ("", "/jobs", 401),
    ("", "/whoami", 401), ("", "/audit", 401), ("", "/", 401), ("", "/nothing", 401), ("", "/best", 401),
    ("reader", "/jobs", 200), ("reader", "/whoami", 200), ("reader", "/audit", 403), ("reader", "/nothing", 404),
    ("machine", "/targets", 200), ("machine", "/jobs", 403), ("machine", "/", 403), ("machine", "/audit", 403),
    ("alice", "/jobs", 200), ("alice", "/audit", 403), ("admin", "/audit", 200),
    ("alice", "/ui/audit", 403), ("alice", "/ui/audit.json", 403), ("admin", "/ui/audit", 200),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("who", "path", "status"), MAY)
def test_each_role_sees_what_is_its_own(guarded: Guarded, who: str, path: str, status: int) -> None:
    response = guarded.ask(who, "GET", path)
    assert response.status_code == status, response.text
    if status in (401, 403):
        assert response.headers["content-type"].partition(";")[0] in (MEDIA_TYPE, "text/html")
        assert ("www-authenticate" in response.headers) == (status == 401)


@pytest.mark.parametrize(("who", "status"), [("", 401), ("reader", 403), ("machine", 403), ("alice", 202)])
def test_only_some_roles_submit(guarded: Guarded, who: str, status: int) -> None:
    assert guarded.ask(who, "POST", "/jobs", json=pair(17)).status_code == status


@pytest.mark.parametrize(("who", "status"), [("", 401), ("reader", 403), ("machine", 403), ("alice", 404)])
def test_only_some_roles_have_packs_made(guarded: Guarded, who: str, status: int) -> None:
    shape = {name: value for name, value in SMALL_PAIR.items() if name not in ("kind", "m")}
    assert guarded.ask(who, "POST", "/packs", json={"shapes": [{**shape, "rows": [19]}]}).status_code == status


@pytest.mark.parametrize("header", ["Bearer tuner_x", "Bearer", "Basic YTpi", "x", "Bearer " + "a" * 5000])
def test_a_token_that_is_none_is_refused(guarded: Guarded, header: str) -> None:
    response = httpx.get(f"{guarded.url}/jobs", headers={"Authorization": header})
    assert (response.status_code, response.headers["www-authenticate"]) == (401, 'Bearer realm="tuner"')


def test_two_owners_share_the_run_of_an_equal_problem_and_to_cancel_detaches(guarded: Guarded) -> None:
    first = guarded.ask("alice", "POST", "/jobs", json=pair(32)).json()
    second = guarded.ask("bob", "POST", "/jobs", json=pair(32))
    assert (second.status_code, second.json()["id"], second.json()["owners"]) == (200, first["id"], ["alice", "bob"])
    left = guarded.ask("alice", "POST", f"/jobs/{first['id']}:cancel").json()
    assert (left["state"] in ("queued", "searching"), left["owners"]) == (True, ["bob"])
    refused = guarded.ask("alice", "POST", f"/jobs/{first['id']}:cancel")
    assert (refused.status_code, "belongs to bob" in refused.json()["detail"]) == (403, True)
    assert guarded.ask("bob", "POST", f"/jobs/{first['id']}:cancel").json()["state"] == "cancelled"


def test_an_admin_ends_anybodys_job_and_the_log_says_who_did_what(guarded: Guarded) -> None:
    job_id = guarded.ask("alice", "POST", "/jobs", json=pair(48)).json()["id"]
    assert guarded.ask("admin", "POST", f"/jobs/{job_id}:cancel").json()["state"] == "cancelled"
    entries = guarded.ask("admin", "GET", "/audit", params={"limit": 2}).json()["items"]
    assert [(one["owner"], one["action"], one["subject"]) for one in entries] == [
        ("root", "job.cancel", job_id), ("alice", "job.submit", job_id)
    ]  # fmt: skip
    assert all(one["address"] == "127.0.0.1" and one["token_id"].startswith("tok-") for one in entries)


def test_the_log_is_read_page_by_page(guarded: Guarded) -> None:
    for m in (64, 80):
        guarded.ask("alice", "POST", "/jobs", json=pair(m))
    first = guarded.ask("admin", "GET", "/audit", params={"limit": 1}).json()
    second = guarded.ask("admin", "GET", "/audit", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert second["items"][0]["seq"] == first["items"][0]["seq"] - 1


def test_an_admin_reads_the_log_on_a_page_that_leads_to_what_was_changed(guarded: Guarded) -> None:
    job_id = guarded.ask("alice", "POST", "/jobs", json=pair(224)).json()["id"]
    html = guarded.ask("admin", "GET", "/ui/audit", headers={"Accept": "text/html"}).text
    assert f'<a href="/ui/jobs/{job_id}"><code>{job_id}</code></a>' in html
    assert "<code>job.submit</code>" in html
    page = guarded.ask("admin", "GET", "/ui/audit.json").json()["entries"]
    assert page["items"] == guarded.ask("admin", "GET", "/audit").json()["items"]
    last = [one for one in page["items"] if one["subject"] == job_id]
    assert [(one["owner"], one["page"]) for one in last] == [("alice", f"/ui/jobs/{job_id}")]
    assert 'href="/ui/audit"' in guarded.ask("admin", "GET", "/ui/fleet", headers={"Accept": "text/html"}).text
    assert 'href="/ui/audit"' not in guarded.ask("alice", "GET", "/ui/fleet", headers={"Accept": "text/html"}).text


def test_two_owners_may_choose_the_same_idempotency_key(guarded: Guarded) -> None:
    answers = []
    for who, m in (("alice", 96), ("bob", 112), ("alice", 96)):
        headers = {"Authorization": f"Bearer {guarded.secrets[who]}", "Idempotency-Key": "nightly"}
        answers.append(httpx.post(f"{guarded.url}/jobs", json=pair(m), headers=headers))
    assert [answer.status_code for answer in answers] == [202, 202, 200]
    assert answers[0].json()["id"] == answers[2].json()["id"]


def test_a_revoked_token_is_refused_within_a_moment_and_an_expired_one_at_once(guarded: Guarded) -> None:
    token_id, secret = make_token(guarded.service, "carol", Role.READ)
    headers = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{guarded.url}/jobs", headers=headers).status_code == 200
    with guarded.service._store.write() as session:
        tokens.revoke(session, token_id, time.time())
    time.sleep(REMEMBERED_S + 0.05)
    assert httpx.get(f"{guarded.url}/jobs", headers=headers).status_code == 401
    _, expired = make_token(guarded.service, "carol", Role.READ, expires_at=time.time() - 1)
    assert httpx.get(f"{guarded.url}/jobs", headers={"Authorization": f"Bearer {expired}"}).status_code == 401


def test_the_database_holds_no_secret(guarded: Guarded) -> None:
    content = b"".join(path.read_bytes() for path in guarded.service._store.directory.glob("tuner.db*"))
    assert [name for name, secret in guarded.secrets.items() if secret.encode() in content] == []
    assert b"alice" in content


def test_a_description_of_the_api_names_the_token_where_one_is_needed(guarded: Guarded) -> None:
    description = guarded.ask("", "GET", "/openapi.json").json()
    assert set(description["components"]["securitySchemes"]) == {"token", "session"}
    assert {"token": []} in description["paths"]["/jobs"]["post"]["security"]
    assert description["paths"]["/livez"]["get"]["security"] == []


def test_every_answer_says_that_it_is_what_it_says_it_is(guarded: Guarded) -> None:
    for path in ("/livez", "/login", "/jobs", "/static/styles/tuner.css", "/nothing"):
        headers = guarded.ask("", "GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]


def test_a_token_that_asks_too_often_is_told_when_to_ask_again_and_others_are_not(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", target=None) as service, listening(service, requests_per_s=1.0) as url:
        hasty, calm = (make_token(service, name, Role.READ)[1] for name in ("hasty", "calm"))
        with httpx.Client(base_url=url) as http:
            statuses = [http.get("/jobs", headers={"Authorization": f"Bearer {hasty}"}) for _ in range(12)]
            assert [one.status_code for one in statuses].count(200) == 10
            assert (statuses[-1].status_code, statuses[-1].headers["retry-after"]) == (429, "10")
            assert http.get("/jobs", headers={"Authorization": f"Bearer {calm}"}).status_code == 200
            wrong = [http.get("/jobs", headers={"Authorization": f"Bearer {n}"}).status_code for n in range(22)]
            assert wrong == [401] * 20 + [429] * 2
            never_seen = make_token(service, "late", Role.READ)[1]
            assert http.get("/jobs", headers={"Authorization": f"Bearer {never_seen}"}).status_code == 200
            assert http.post("/login", data={"token": "x"}).status_code == 429
            assert http.post("/login", data={"token": never_seen}).status_code == 303
            assert http.get("/jobs", headers={"Authorization": f"Bearer {calm}"}).status_code == 200


@pytest.mark.slow
def test_without_a_token_ever_made_everybody_may_do_all_and_the_first_one_ends_that(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", target=None) as service, listening(service) as url:
        assert httpx.get(f"{url}/whoami").json() == {
            "owner": "", "role": "admin", "token_id": "", "needs_token": False
        }  # fmt: skip
        assert httpx.get(f"{url}/audit").json()["items"] == []
        make_token(service, "alice", Role.READ)
        time.sleep(REMEMBERED_S + 0.05)
        assert httpx.get(f"{url}/audit").status_code == 401


@pytest.mark.slow
def test_whoever_joins_a_job_that_waits_can_have_it_go_on(guarded: Guarded) -> None:
    first = guarded.ask("alice", "POST", "/jobs", json=pair(40)).json()
    assert guarded.ask("alice", "POST", f"/jobs/{first['id']}:pause").json()["is_paused"]
    joined = guarded.ask("bob", "POST", "/jobs", json=pair(40)).json()
    assert (joined["id"], joined["is_paused"]) == (first["id"], True)
    refused = guarded.ask("bob", "POST", f"/jobs/{first['id']}:pause")
    assert (refused.status_code, "only an admin may pause it" in refused.json()["detail"]) == (403, True)
    assert not guarded.ask("bob", "POST", f"/jobs/{first['id']}:resume").json()["is_paused"]
