"""The login in a real browser: the content security policy allows the form, the styles and the event stream, and
nothing else."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from playwright.sync_api import Page, expect

from tests.support.serving import Server, body
from tuner.cli import main

pytestmark = pytest.mark.slow


# In CI, tests/service/api/test_login.py has the form, and test_actions.py follows a job.
@pytest.mark.soak
def test_a_token_opens_the_dashboard_and_a_job_is_followed_until_the_logout(page: Page, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    made = CliRunner().invoke(main, ["token", "create", "--owner", "alice", "--role", "submit", "--data", str(data)])
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    with Server(data, "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="0.03") as server:
        job = httpx.post(f"{server.url}/jobs", json=body(budget={"trials": 4}), headers=headers).json()
        page.goto(f"{server.url}{job['links']['page']}")
        expect(page).to_have_title("Log in · tuner")
        page.get_by_label("Token").fill(made.stdout.strip())
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".state").first).to_have_text("succeeded")
        expect(page.locator("header.top")).to_contain_text("alice")
        # Until then, the page reloads itself, which fails once the job has been deleted.
        expect(page.locator("#inspections")).not_to_contain_text("More is being collected")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Delete").click()
        expect(page).to_have_url(f"{server.url}/")
        assert httpx.get(f"{server.url}/jobs/{job['id']}", headers=headers).status_code == 404
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_title("Log in · tuner")
        page.goto(f"{server.url}/")
        expect(page).to_have_title("Log in · tuner")
