"""The dashboard with tokens: login, session, and forms of other sites."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from tests.service.api.test_access import make_token
from tests.support.serving import Server, body, listening, running_service
from tuner.api.access.login_form import local_path
from tuner.api.http.session import COOKIE, CSRF_HEADER
from tuner.cli import main
from tuner.core.access.caller import LOCAL, Role
from tuner.service import Service
from tuner.service.submission.authorization import REMEMBERED_S, Access
from tuner.store.access import tokens


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("login") / "data", latency_s=5.0) as service:
        yield service


@pytest.fixture
def browser(service: Service) -> Iterator[httpx.Client]:
    """Sends what a browser sends, without running scripts."""
    headers = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    with listening(service) as url, httpx.Client(base_url=url, headers=headers) as browser:
        yield browser


def log_in(browser: httpx.Client, service: Service, role: Role = Role.SUBMIT) -> str:
    """Logs in; returns the id of the token."""
    token_id, secret = make_token(service, "alice", role)
    response = browser.post("/login?next=/?state=queued", data={"token": secret})
    assert (response.status_code, response.headers["location"]) == (303, "/?state=queued")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert secret not in str(response.headers)
    return token_id


def test_a_page_leads_to_the_login_and_back(browser: httpx.Client, service: Service) -> None:
    make_token(service, "alice", Role.READ)
    time.sleep(REMEMBERED_S + 0.05)
    response = browser.get("/?state=queued")
    assert (response.status_code, response.headers["location"]) == (303, "/login?next=%2F%3Fstate%3Dqueued")
    form = browser.get(response.headers["location"])
    assert (form.status_code, 'type="password"' in form.text) == (200, True)
    log_in(browser, service)
    page = browser.get("/")
    assert (page.status_code, "alice" in page.text, "Log out" in page.text) == (200, True, True)
    assert page.headers["cache-control"] == "no-store"


def test_a_wrong_token_begins_no_session(browser: httpx.Client) -> None:
    response = browser.post("/login", data={"token": "tuner_wrong"})
    assert (response.status_code, "unknown, expired or revoked" in response.text) == (401, True)
    assert COOKIE not in browser.cookies


def test_a_forged_cookie_is_no_session(browser: httpx.Client, service: Service) -> None:
    log_in(browser, service)
    value = browser.cookies[COOKIE]
    for forged in (value[:-2] + ("AA" if value[-2:] != "AA" else "BB"), "x", value.split(".")[0], ""):
        answer = httpx.get(f"{browser.base_url}/jobs", headers={"Cookie": f"{COOKIE}={forged}"})
        assert answer.status_code == 401, forged


def test_a_session_changes_something_only_with_the_proof_of_its_page(browser: httpx.Client, service: Service) -> None:
    log_in(browser, service)
    assert browser.post("/jobs", json=body()).status_code == 403
    assert browser.post("/jobs", json=body(), headers={CSRF_HEADER: "guessed"}).status_code == 403
    _, _, rest = browser.get("/").text.partition('<meta name="csrf" content="')
    proof = rest.partition('"')[0]
    assert len(proof) >= 20
    assert browser.post("/jobs", json=body(), headers={CSRF_HEADER: proof}).status_code in (200, 202)


@pytest.mark.slow
def test_a_session_ends_with_its_form_and_with_its_token(browser: httpx.Client, service: Service) -> None:
    token_id = log_in(browser, service)
    assert browser.post("/logout", data={"csrf": "guessed"}).status_code == 403
    log_out(browser)
    assert browser.get("/").status_code == 303
    token_id = log_in(browser, service)
    with service._store.write() as session:
        tokens.revoke(session, token_id, time.time())
    time.sleep(REMEMBERED_S + 0.05)
    assert browser.get("/").status_code == 303


def log_out(browser: httpx.Client) -> None:
    _, _, rest = browser.get("/").text.partition('name="csrf" value="')
    assert browser.post("/logout", data={"csrf": rest.partition('"')[0]}).headers["location"] == "/login"


@pytest.mark.slow
def test_a_copied_cookie_is_worth_nothing_once_its_session_was_ended(browser: httpx.Client, service: Service) -> None:
    token_id = log_in(browser, service)
    copied = {"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}
    assert httpx.get(f"{browser.base_url}/jobs", headers=copied).status_code == 200
    log_out(browser)
    for _ in range(2):  # immediately, and when the cache has expired
        answer = httpx.get(f"{browser.base_url}/jobs", headers=copied)
        assert (answer.status_code, "the session has expired" in answer.text) == (401, True)
        time.sleep(REMEMBERED_S + 0.05)
    assert httpx.post(f"{browser.base_url}/logout", headers=copied, data={"csrf": "any"}).status_code == 401
    other_id = log_in(browser, service)
    assert browser.get("/jobs").status_code == 200, "another session has a different token"
    assert token_id != other_id
    ends = [one for one in service.access.entries().items if one.action == "session.end" and one.subject == token_id]
    assert len(ends) == 1


def test_a_session_that_was_ended_stays_so_for_every_server_and_after_a_restart(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", target=None) as service:
        token_id, _ = make_token(service, "alice", Role.READ)
        other = Access(service._store)
        assert [one.by_session(token_id, "a word") is None for one in (service.access, other)] == [False, False]
        other.end_session(LOCAL, token_id, "a word")
        assert other.by_session(token_id, "a word") is None
        time.sleep(REMEMBERED_S + 0.05)
        assert service.access.by_session(token_id, "a word") is None
        assert service.access.by_session(token_id, "another word") is not None
    with running_service(tmp_path / "data", target=None) as service:
        assert service.access.by_session(token_id, "a word") is None


def test_a_session_is_too_old_after_its_time(
    browser: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.api.http.session.SESSION_S", 1)
    log_in(browser, service)
    kept = {"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}  # the browser deletes its own copy
    assert httpx.get(f"{browser.base_url}/jobs", headers=kept).status_code == 200
    time.sleep(2.1)  # the signature has whole seconds
    assert httpx.get(f"{browser.base_url}/jobs", headers=kept).status_code == 401


@pytest.mark.slow
def test_behind_a_proxy_with_tls_the_cookie_is_never_sent_in_the_clear(tmp_path: Path) -> None:
    made = CliRunner().invoke(main, ["token", "create", "--owner", "alice", "--role", "read", "--data", str(tmp_path)])
    form, forwarded = {"token": made.stdout.strip()}, {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    for trusted, is_secure in (("127.0.0.1", True), ("", False)):
        with Server(tmp_path, "--gpu", "none", TUNER_TRUSTED_PROXIES=trusted) as server:
            answer = httpx.post(f"{server.url}/login", data=form, headers=forwarded)
        assert (answer.status_code, "; secure" in answer.headers["set-cookie"].lower()) == (303, is_secure)


def test_another_sites_form_cannot_log_anybody_in(browser: httpx.Client, service: Service) -> None:
    _, secret = make_token(service, "mallory", Role.READ)
    answer = browser.post("/login", data={"token": secret}, headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, COOKIE in browser.cookies) == (403, False)


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\n/x", "x", ""]
)
def test_the_login_leads_nowhere_else(wanted: str) -> None:
    assert local_path(wanted) == "/"
    assert local_path("/ui/jobs/job-1?sort=time") == "/ui/jobs/job-1?sort=time"


def test_the_key_that_signs_sessions_is_kept_and_is_for_nobody_elses_eyes(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", target=None) as service:
        key = service.access.session_key
        assert (tmp_path / "data" / "session.key").stat().st_mode & 0o777 == 0o600
    with running_service(tmp_path / "data", target=None) as service:
        assert service.access.session_key == key
