"""A real headless Chromium. Without one this lane fails under CI and says so elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.serving import Server, body
from tuner.client import Client

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser."""
    path = shutil.which("chromium")
    if path is None and os.environ.get("CI") == "true":
        pytest.fail("no chromium: apt-get install chromium")
    if path is None:
        pytest.skip("no chromium, so the dashboard is not tested in a browser: apt-get install chromium")
    return path


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser for the whole lane."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh window; a test fails where a page logs an error, throws, or asks another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"threw {error}"))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if "//127.0.0.1:" in request.url else faults.append(f"asked {request.url}"))
    yield page
    context.close()
    assert faults == []


@pytest.fixture(scope="module")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose trials take long enough to be watched."""
    data: Path = tmp_path_factory.mktemp("browser") / "data"
    with Server(data, "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="0.03") as server:
        yield server


@pytest.fixture(scope="module")
def job_id(server: Server) -> str:
    """A job that has succeeded."""
    with Client(server.url) as client:
        job = client.submit(body(budget={"trials": 120}))
        assert list(client.events(job["id"], timeout_s=60))[-1]["data"]["state"] == "succeeded"
    return str(job["id"])
