"""Login by a proxy's header: accepted from listed addresses only, and tested with a real OpenID Connect proxy."""

from __future__ import annotations

import os
import re
import shutil
import ssl
from pathlib import Path

import httpx
import pytest

from tests.support.apache import MODULES, example_login, free_port, identity_provider
from tests.support.serving import Server, body
from tests.support.waiting import wait_until
from tuner.settings import Settings

pytestmark = pytest.mark.slow

LISTED = {"TUNER_LOGIN_HEADER": "X-Forwarded-User", "TUNER_LOGIN_PROXIES": "127.0.0.0/8, ::1", "TUNER_GPU": "none"}
ALICE = {"X-Forwarded-User": "alice"}


def csrf_of(page: str) -> str:
    found = re.search(r'<meta name="csrf" content="([^"]+)">', page)
    assert found is not None
    return found[1]


def test_a_listed_proxy_names_the_user_and_forms_need_the_proof_of_their_page(tmp_path: Path) -> None:
    with Server(tmp_path / "data", **LISTED, TUNER_LOGIN_ADMINS="root, eve") as server:
        assert httpx.get(f"{server.url}/jobs").status_code == 401
        caller = httpx.get(f"{server.url}/whoami", headers=ALICE).json()
        assert caller == {"owner": "alice", "role": "submit", "token_id": "", "needs_token": True}
        assert httpx.get(f"{server.url}/ui/access", headers=ALICE).status_code == 403
        assert httpx.get(f"{server.url}/ui/access", headers={"X-Forwarded-User": "eve"}).status_code == 200
        page = httpx.get(f"{server.url}/", headers=ALICE).text
        assert "alice" in page
        assert "Log out" not in page
        # The user's login is also sent with forms of other sites.
        refused = httpx.post(f"{server.url}/packs", headers=ALICE, json={"shapes": []})
        assert (refused.status_code, "X-CSRF-Token" in refused.json()["detail"]) == (403, True)
        proven = {**ALICE, "X-CSRF-Token": csrf_of(page)}
        assert httpx.post(f"{server.url}/packs", headers=proven, json={"shapes": []}).status_code == 422
        others = {"X-Forwarded-User": "bob", "X-CSRF-Token": csrf_of(page)}
        assert httpx.post(f"{server.url}/packs", headers=others, json={"shapes": []}).status_code == 403
        assert httpx.post(f"{server.url}/ui/jobs/job-0/cancel", headers=ALICE, data={}).status_code == 403


def test_a_name_that_is_none_lets_nobody_in(tmp_path: Path) -> None:
    with Server(tmp_path / "data", **LISTED) as server:
        for name in (b"", b"a" * 65, b"a\tb", b"\xff", b"alice,root"):
            assert httpx.get(f"{server.url}/whoami", headers={"X-Forwarded-User": name}).status_code == 401, name
        twice = [("X-Forwarded-User", "alice"), ("X-Forwarded-User", "root")]
        assert httpx.get(f"{server.url}/whoami", headers=twice).status_code == 401
        assert httpx.get(f"{server.url}/whoami", headers={"X-Forwarded-User": "zoë".encode()}).json()["owner"] == "zoë"


def test_a_connection_from_elsewhere_names_nobody_whatever_it_says_of_its_client(tmp_path: Path) -> None:
    elsewhere = {**LISTED, "TUNER_LOGIN_PROXIES": "10.0.0.7", "TUNER_TRUSTED_PROXIES": "127.0.0.1"}
    with Server(tmp_path / "data", **elsewhere) as server:
        for extra in ({}, {"X-Forwarded-For": "10.0.0.7"}, {"Forwarded": "for=10.0.0.7"}, {"X-Real-IP": "10.0.0.7"}):
            assert httpx.get(f"{server.url}/whoami", headers={**ALICE, **extra}).status_code == 401, extra


@pytest.mark.parametrize(
    "settings",
    [
        {"login_header": "X-User"},
        {"login_proxies": "10.0.0.7"},
        {"login_header": "X-User", "login_proxies": "*"},
        {"login_header": "X User", "login_proxies": "10.0.0.7"},
        {"login_header": "X-User", "login_proxies": "10.0.0.7", "login_role": "admin"},
    ],
)
def test_a_header_that_would_be_believed_of_anybody_is_no_setting(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="login_"):
        Settings(**settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def apache() -> str:
    path = shutil.which("apache2") or shutil.which("apache2", path="/usr/sbin")
    if path is not None and (MODULES / "mod_auth_openidc.so").exists():
        return path
    if os.environ.get("CI") == "true":
        pytest.fail("no mod_auth_openidc: apt-get install apache2 libapache2-mod-auth-openidc")
    pytest.skip("no mod_auth_openidc: apt-get install apache2 libapache2-mod-auth-openidc")


# In CI, other tests of this file have a proxy that names the user.
@pytest.mark.soak
def test_apache_and_openid_connect_log_a_user_in_who_submits_a_job(apache: str, tmp_path: Path) -> None:
    pytest.importorskip("oidc_provider_mock")
    site = free_port()
    settings = {**LISTED, "TUNER_GPU": "simulated:h200", "TUNER_TRUSTED_PROXIES": "127.0.0.1"}
    with (
        identity_provider(tmp_path) as provider,
        Server(tmp_path / "data", **settings) as server,
        example_login(apache, tmp_path, site, server.port, provider) as trusted,
    ):
        url, context = f"https://127.0.0.1:{site}", ssl.create_default_context(cafile=str(trusted))
        with httpx.Client(verify=context, follow_redirects=True, headers={"X-Forwarded-User": "root"}) as browser:
            asked = browser.get(f"{url}/ui/fleet", headers={"Accept": "text/html"})
            assert str(asked.url).startswith(provider), asked.text
            shown = browser.post(asked.url, data={"sub": "alice@example.com"})
            assert str(shown.url) == f"{url}/ui/fleet", shown.text
            assert browser.get(f"{url}/whoami").json()["owner"] == "alice@example.com"
            headers = {"X-CSRF-Token": csrf_of(shown.text)}
            job = browser.post(f"{url}/jobs", json=body(), headers=headers).json()
            assert job["owners"] == ["alice@example.com"]
            with browser.stream("GET", f"{url}/jobs/{job['id']}/events") as events:
                assert next(line for line in events.iter_lines() if line.startswith("data:"))
            wait_until(lambda: browser.get(f"{url}/jobs/{job['id']}").json()["state"] == "succeeded", 120)
        # A program has a token of the service; without one, the proxy's header is used, and the program's own header is
        # ignored.
        wrong = httpx.get(
            f"{url}/jobs", verify=context, headers={"Authorization": "Bearer tuner_x", "X-Forwarded-User": "root"}
        )
        assert (wrong.status_code, "unknown" in wrong.json()["detail"]) == (401, True)
