"""A service below a path of a site: every link and redirect begins with the path and leads to an existing page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import ValidationError

from tests.service.api.conftest import Api
from tests.service.api.test_access import make_token
from tests.support.serving import body, listening, running_service
from tuner.api.app import create_app
from tuner.client.connection.addresses import address_of
from tuner.core.access.caller import Role
from tuner.core.trial.records import Webhook, WebhookState
from tuner.settings import OWN_PATHS, Settings
from tuner.wire.responses.webhooks import job_ended_body

ROOT = "/tuner"
_ATTRIBUTES = re.compile(r'\s([a-z-]+)="(/[^"]*)"')
#: A text in JSON that is a path of this service, or an address with such a path.
_PATH = re.compile(r"/(?:tuner|ui|jobs|batches|artifacts|static)(?:/|$)")


@pytest.fixture(scope="module")
def below(api: Api) -> Iterator[httpx.Client]:
    with listening(api.service, root_path=ROOT) as url, httpx.Client(base_url=url) as http:
        yield http


def paths_in(found: Any) -> Iterator[str]:
    if isinstance(found, dict | list):
        for one in found.values() if isinstance(found, dict) else found:
            yield from paths_in(one)
    elif isinstance(found, str) and _PATH.match(found):
        yield found


def links_of(answer: httpx.Response) -> set[str]:
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/html"):
        return {path.replace("&amp;", "&") for _, path in _ATTRIBUTES.findall(answer.text)}
    if kind.startswith(("application/json", "application/problem")):
        return set(paths_in(answer.json()))
    return set()


def crawl(http: httpx.Client, first: list[str], most_per_form: int = 2) -> dict[str, httpx.Response]:
    """Every page reachable by links; only a few of each address pattern (`/ui/jobs/*/trials/*`)."""
    found: dict[str, httpx.Response] = {}
    waiting, forms = list(first), dict[str, int]()
    while waiting:
        path = waiting.pop()
        form = re.sub(r"job-\w+|[0-9a-f]{16,}|\d+", "*", urlsplit(path).path) + str(
            sorted(urlsplit(path).query.split("=")[:1])
        )
        if path in found or path.endswith(("/events", "/openapi.json")) or forms.get(form, 0) >= most_per_form:
            continue
        forms[form] = forms.get(form, 0) + 1
        found[path] = http.get(path, headers={"accept": "text/html"} if "/ui/" in path else {})
        waiting += [link for link in links_of(found[path]) if link not in found]
    return found


# In CI, other tests of this file have answers, events and webhooks below the path.
@pytest.mark.soak
def test_every_link_of_every_page_and_document_leads_below_the_path(api: Api, below: httpx.Client) -> None:
    batch = below.post(
        "/tuner/batches",
        json={"shapes": [{"m": [4, 8], "d_in": 64, "d_hidden": 64, "d_out": 64}], "budget": {"trials": 4}},
    )
    assert batch.status_code == 202, batch.text
    first = [f"{ROOT}{path}" for path in ("/", "/jobs", "/batches", "/targets", f"/jobs/{api.job_id}/trials/1")]
    found = crawl(
        below, [*first, f"{ROOT}/ui/compare?a={api.job_id}&b={api.job_id}/1", f"{ROOT}/jobs/{api.job_id}/best"]
    )
    outside = {
        path: [link for link in links_of(answer) if not link.startswith(f"{ROOT}/")] for path, answer in found.items()
    }
    assert {path: links for path, links in outside.items() if links} == {}
    # A form is sent to its address, and a batch's response may be incomplete.
    assert {answer.status_code for answer in found.values()} <= {200, 202, 307, 404, 405, 409}
    missing = [
        path
        for path, answer in found.items()
        if answer.status_code == 404 and not re.search("(trace|counters|energy|best)$", path)
    ]
    assert missing == []
    assert len(found) > 60
    assert sum("/static/" in path for path in found) > 5


def test_answers_that_lead_on_name_the_path(api: Api, below: httpx.Client) -> None:
    assert below.get(f"{ROOT}?state=queued").headers["location"] == f"{ROOT}/?state=queued"
    assert below.get(f"{ROOT}/jobs/").headers["location"] == f"{ROOT}/jobs"
    new = below.post(f"{ROOT}/jobs", json=body(seed=77, budget={"trials": 4}))
    assert new.headers["location"] == new.json()["links"]["self"] == f"{ROOT}/jobs/{new.json()['id']}"
    assert (
        below.post(f"{ROOT}/jobs/{new.json()['id']}:retry")
        .headers.get("location", f"{ROOT}/jobs/")
        .startswith(f"{ROOT}/jobs/")
    )
    asked = below.post(f"{ROOT}/jobs/{api.job_id}/trials/1/energy")
    assert asked.status_code in (200, 202)
    assert asked.headers["location"] == asked.json()["href"] == f"{ROOT}/jobs/{api.job_id}/trials/1/energy"
    form = {"what": "ffn", "m": "2", "d_in": "64", "d_hidden": "64", "d_out": "64", "trials": "4"}
    sent = below.post(f"{ROOT}/ui/jobs", data=form)
    assert sent.status_code == 303, sent.text
    assert sent.headers["location"].startswith(f"{ROOT}/ui/jobs/job-")


def test_events_and_webhooks_link_below_the_path(api: Api, below: httpx.Client) -> None:
    text = below.get(f"{ROOT}/jobs/{api.job_id}/events").text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert events
    assert [path for path in paths_in(events) if not path.startswith(ROOT)] == []
    job, best = api.service.job(api.job_id), api.service.best(api.job_id)
    webhook = Webhook(
        seq=1, job_id=job.id, url="https://a.example/", host="a.example", state=WebhookState.DUE, owner="",
        num_attempts=0, due_at=None, ended_at=None, reason="",
    )  # fmt: skip
    heard = json.loads(job_ended_body(webhook, job, best, root_path=ROOT))
    assert heard["job"]["links"]["page"] == f"{ROOT}/ui/jobs/{job.id}"
    assert json.loads(job_ended_body(webhook, job, best))["job"]["links"]["page"] == f"/ui/jobs/{job.id}"


@pytest.mark.slow
def test_the_document_of_the_api_names_the_path_and_the_commands_of_a_form_too(below: httpx.Client) -> None:
    assert below.get(f"{ROOT}/openapi.json").json()["servers"] == [{"url": ROOT}]
    page = below.get(f"{ROOT}/ui/submit.json").json()
    assert f"{str(below.base_url).rstrip('/')}{ROOT}" in page["curl"] + page["client"]


def test_a_request_without_the_path_is_taken_for_a_proxy_that_took_it_off(api: Api, below: httpx.Client) -> None:
    assert below.get("/readyz").status_code == 200
    assert below.get(f"/jobs/{api.job_id}").json()["links"]["self"] == f"{ROOT}/jobs/{api.job_id}"
    assert below.get("/tunerx/jobs").status_code == 404


def own_paths(routes: Sequence[Any]) -> Iterator[str]:
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from [route.path] if included is None else own_paths(included.routes)


def test_a_path_that_is_the_services_own_is_refused(api: Api) -> None:
    first = {path.split("/")[1].split(":")[0] for path in own_paths(create_app(api.service).routes)}
    assert first - {"", ".json"} == OWN_PATHS
    for path in ("/jobs", "/ui/x", "/static/"):
        with pytest.raises(ValidationError, match="path of the service itself"):
            Settings(root_path=path)


@pytest.mark.parametrize(
    "path", ["tuner", "//evil.example", "/a/../b", "/a b", "/a?b", "/a//b", "https://a.example/tuner"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="use one like /tuner"):
        Settings(root_path=path)


@pytest.mark.parametrize(("given", "path"), [("/", ""), ("", ""), ("/tuner/", "/tuner"), ("/a/b.c", "/a/b.c")])
def test_a_slash_at_the_end_is_left_out(given: str, path: str) -> None:
    assert Settings(root_path=given).root_path == path


def test_a_session_is_kept_and_ended_below_the_path_alone(tmp_path: Path) -> None:
    with (
        running_service(tmp_path / "data", target=None) as service,
        listening(service, root_path=ROOT) as url,
        httpx.Client(base_url=url) as http,
    ):
        _, secret = make_token(service, "ann", Role.ADMIN)
        led = http.get(f"{ROOT}/ui/results?m=16", headers={"accept": "text/html"})
        assert led.headers["location"].startswith(f"{ROOT}/login?next=")
        assert f'action="{ROOT}/login' in http.get(led.headers["location"]).text
        begun = http.post(led.headers["location"], data={"token": secret})
        assert begun.headers["location"] == f"{ROOT}/ui/results?m=16"
        assert f"Path={ROOT};" in begun.headers["set-cookie"] + ";"
        again = http.post(f"{ROOT}/login?next={ROOT}/ui/fleet", data={"token": secret})
        assert again.headers["location"] == f"{ROOT}/ui/fleet"
        assert [path for path in paths_in(http.get(f"{ROOT}/ui/audit.json").json()) if not path.startswith(ROOT)] == []
        csrf = re.search(r'name="csrf" (?:content|value)="([^"]+)"', http.get(f"{ROOT}/").text)
        assert csrf is not None
        ended = http.post(f"{ROOT}/logout", data={"csrf": csrf[1]})
        assert ended.headers["location"] == f"{ROOT}/login"
        assert f"Path={ROOT};" in ended.headers["set-cookie"] + ";"
        assert f"log in at {ROOT}/login" in http.get(f"{ROOT}/jobs").json()["detail"]


@pytest.mark.parametrize(
    ("url", "link", "address"),
    [
        ("https://a.example/tuner", "/tuner/ui/jobs/job-1", "https://a.example/tuner/ui/jobs/job-1"),
        ("https://a.example/tuner", "/ui/jobs/job-1", "https://a.example/tuner/ui/jobs/job-1"),
        ("https://a.example/", "/ui/jobs/job-1", "https://a.example/ui/jobs/job-1"),
        ("http://127.0.0.1:8000", "/ui/jobs/job-1", "http://127.0.0.1:8000/ui/jobs/job-1"),
        ("http://127.0.0.1:8000", "/tuner/ui/jobs/job-1", "http://127.0.0.1:8000/tuner/ui/jobs/job-1"),
    ],
)
def test_a_client_opens_a_link_where_it_reached_the_service(url: str, link: str, address: str) -> None:
    assert address_of(url, link) == address
