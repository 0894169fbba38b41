"""The reverse-proxy example of `deploy/nginx`: a browser and a client connect below a path, over TLS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, expect

from tests.pages.conftest import LIMIT_MS
from tests.support.nginx import example_proxy
from tests.support.serving import Server, body
from tuner.cli import main
from tuner.client import Client

pytestmark = pytest.mark.slow


@pytest.fixture
def nginx() -> str:
    path = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None and os.environ.get("CI") == "true":
        pytest.fail("no nginx: apt-get install nginx-light")
    if path is None:
        pytest.skip("no nginx, so the example of a reverse proxy is not tested: apt-get install nginx-light")
    return path


def test_a_job_is_followed_below_a_path_through_the_proxy(
    nginx: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nginx"
    folder.mkdir()
    trusting = {"TUNER_TRUSTED_PROXIES": "127.0.0.1"}
    with (
        Server(tmp_path / "data", "--gpu", "simulated:h200", "--root-path", "/tuner", **trusting) as server,
        example_proxy(nginx, folder, server.port) as (site, certificate),
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Client(f"{site}/tuner") as client:
            job = client.submit(body(budget={"trials": 3}))
            assert list(client.events(job["id"], timeout_s=240))[-1]["data"]["state"] == "succeeded"
            assert client.artifact(client.best(job["id"])["artifact"]["digest"]).files
        page = httpx.get(f"{site}{job['links']['page']}", headers={"accept": "text/html"})
        assert (page.status_code, page.url.path) == (200, f"/tuner/ui/jobs/{job['id']}")
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert links
        assert [link for link in links if not link.startswith("/tuner/")] == []


# In CI, the test above has a client and a page.
@pytest.mark.soak
def test_the_service_is_used_below_a_path_through_the_proxy(
    nginx: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = tmp_path / "data", tmp_path / "nginx"
    folder.mkdir()
    data.mkdir()
    made = CliRunner().invoke(main, ["token", "create", "--data", str(data), "--owner", "ann", "--role", "admin"])
    secret = made.stdout.strip()
    trusting = {"TUNER_TRUSTED_PROXIES": "127.0.0.1", "TUNER_SIMULATED_LATENCY_S": "0.05"}
    with (
        Server(data, "--gpu", "simulated:h200", "--root-path", "/tuner", **trusting) as server,
        example_proxy(nginx, folder, server.port) as (site, certificate),
    ):
        assert server.url.endswith("/tuner")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        command = [
            sys.executable, "-m", "tuner.client.cli", "--url", f"{site}/tuner", "submit", "--m", "16", "--d-in", "256",
            "--d-hidden", "512", "--d-out", "256", "--trials", "30", "--watch",
        ]  # fmt: skip
        environment = {**os.environ, "TUNER_TOKEN": secret}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watching:
            context = browser.new_context(ignore_https_errors=True)
            context.set_default_timeout(LIMIT_MS)
            page = context.new_page()
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(f"threw {error}"))
            page.on("response", lambda answer: faults.append(answer.url) if answer.status >= 400 else None)
            page.on(
                "request", lambda asked: None if asked.url.startswith(f"{site}/tuner") else faults.append(asked.url)
            )
            page.goto(f"{site}/tuner/ui/results")
            page.get_by_label("Token").fill(secret)
            page.get_by_role("button", name="Log in").click()
            expect(page).to_have_url(f"{site}/tuner/ui/results")
            (cookie,) = context.cookies()
            assert (cookie["path"], cookie["secure"]) == ("/tuner", True)

            page.get_by_role("link", name="Jobs", exact=True).click()
            page.locator(".listing tbody a").first.click()
            expect(page.locator(".state.succeeded").first).to_be_visible()  # it came through the event stream
            page.locator("#points").scroll_into_view_if_needed()
            expect(page.locator("#points canvas")).to_be_visible()
            page.goto(f"{site}/tuner/ui/submit")
            page.get_by_label("Rows").first.fill("32")
            expect(page.locator("#live-commands")).to_contain_text(f"{site}/tuner")
            page.get_by_role("button", name="Log out").click()
            expect(page).to_have_url(f"{site}/tuner/login")
            assert faults == []
            context.close()
            heard = watching.communicate(timeout=120)
        assert watching.returncode == 0, heard
        with Client(f"{site}/tuner", token=secret) as client:
            (job,) = client.jobs()
            assert f"{site}{job['links']['page']}" in heard[1]
            digest = client.best(job["id"])["artifact"]["digest"]
            assert client.artifact(digest).files
