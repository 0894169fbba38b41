"""A real headless Chromium. Without one, these tests fail in CI and are skipped with a message elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from rich.console import Console

from tests.support.builders import failed, measured, rejected, spec, trial
from tests.support.cases import decoder_block
from tests.support.serving import Server, body
from tuner.client import Client
from tuner.client.follow.batch import follow
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import FailureKind, Outcome
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials
from tuner.wire.requests.pairs import Chain

#: One of each kind of trial.
OUTCOMES: tuple[Outcome, ...] = (measured(20.0), rejected(), *(failed(kind) for kind in FailureKind))
#: Trials of the cancelled job: more than a page of its table has.
MANY = (*OUTCOMES, *(measured(21.0 + number) for number in range(120 - len(OUTCOMES))))

#: Maximum time to wait for a state, however busy the machine is.
LIMIT_MS = 120_000

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


#: In the dark scheme, only colours differ.
COLOURS = ["color-contrast", "link-in-text-block"]
#: All rows of a table come from one template, so axe, which checks every element, gets only a few of them.
LATER_ROWS = "tbody tr:nth-child(n+9)"


def serious(page: Page, *, colours_alone: bool = False, every_row: bool = False) -> list[tuple[str, str, str]]:
    """The serious findings of axe on the page: rule, element and remedy."""
    context = None if every_row else {"exclude": [[LATER_ROWS]]}
    # Otherwise, axe describes every element that passes.
    options = {"resultTypes": ["violations"], **({"runOnly": COLOURS} if colours_alone else {})}
    found = Axe().run(page, context=context, options=options)
    return [
        (one["id"], node["html"][:160], node["failureSummary"])
        for one in found.response["violations"]
        for node in one["nodes"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser."""
    path = shutil.which("chromium")
    if path is None and os.environ.get("CI") == "true":
        pytest.fail("no chromium: apt-get install chromium")
    if path is None:
        pytest.skip("no chromium, so the dashboard is not tested in a browser: apt-get install chromium")
    return path


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser shared by consecutive tests of this folder: while it runs, no other test of the process can have its
    own event loop."""
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """A window whose cache has what earlier pages loaded, as a user's."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(LIMIT_MS)
    yield context
    context.close()


@pytest.fixture
def page(window: BrowserContext) -> Iterator[Page]:
    """A fresh page without cookies; the test fails if it logs an error, throws, or contacts another host."""
    window.clear_cookies()
    page = window.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"threw {error}"))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if "//127.0.0.1:" in request.url else faults.append(f"asked {request.url}"))
    yield page
    page.close()
    assert faults == []


@pytest.fixture(scope="session")
def data(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the server, which already contains ended jobs."""
    return Path(tmp_path_factory.mktemp("browser")) / "data"


@pytest.fixture(scope="session")
def ended_jobs(data: Path) -> dict[str, str]:
    """Ended jobs by state: a cancelled one with 120 trials of every outcome, and a failed one without trials."""
    store, ids = Store.open(data), {}
    with store.write() as session:
        for state, outcomes in ((JobState.CANCELLED, MANY), (JobState.FAILED, ())):
            job = jobs.insert(session, spec(m=len(ids) + 1, trials=100), 1.0)
            jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
            for number, outcome in enumerate(outcomes):
                trials.record(session, job.id, trial(number, outcome), 0.1)
            jobs.set_state(session, job.id, state, 3.0, "the card went away")
            ids[str(state)] = job.id
    store.close()
    return ids


@pytest.fixture(scope="session")
def server(data: Path, ended_jobs: dict[str, str]) -> Iterator[Server]:
    """A server whose trials are slow enough to be watched."""
    with Server(data, "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="0.03") as server:
        yield server


@pytest.fixture(scope="session")
def job_id(server: Server) -> str:
    """The id of a job that has succeeded."""
    with Client(server.url) as client:
        job = client.submit(body(budget={"trials": 60}))
        assert list(client.events(job["id"], timeout_s=240))[-1]["data"]["state"] == "succeeded"
    return str(job["id"])


@pytest.fixture(scope="session")
def batch_id(server: Server) -> str:
    """The id of a batch of two row counts that has ended."""
    shape = {"m": [16, 48], "d_in": 128, "d_hidden": 256, "d_out": 128}
    with Client(server.url) as client:
        batch = client.submit_batch({"shapes": [shape], "budget": {"trials": 6}})
        assert follow(client, batch, Console(quiet=True), timeout_s=240)["state"] == "succeeded"
    return str(batch["id"])


@pytest.fixture(scope="session")
def chain_id(server: Server) -> str:
    """The id of a job for a chain of four ops that has succeeded."""
    pair = json.loads(Chain.from_workload(decoder_block(16, 512, 512, 512, heads=512)).model_dump_json())
    with Client(server.url) as client:
        job = client.submit({"pair": pair, "budget": {"trials": 8}})
        assert list(client.events(job["id"], timeout_s=240))[-1]["data"]["state"] == "succeeded"
    return str(job["id"])
