"""Foreign hosts and origins: a page of another site can neither read nor change anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.lanes import one_in
from tests.support.serving import Server, body
from tuner.api.http.origin import host_of, is_own
from tuner.wire.requests.problems import MEDIA_TYPE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("origin") / "data"
    with Server(path, "--gpu", "simulated:h200", TUNER_ALLOWED_HOSTS="tuner.example, other.example",
                TUNER_SIMULATED_LATENCY_S="1") as server:  # fmt: skip
        yield server


def refused(response: httpx.Response) -> str:
    """The detail of a 403."""
    assert (response.status_code, response.headers["content-type"]) == (403, MEDIA_TYPE), response.text
    return str(response.json()["detail"])


FOREIGN_HOSTS = ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "",
                 "tuner.example.evil.example", "tuner.example@evil.example", "evil.example/127.0.0.1"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("host", one_in(4, FOREIGN_HOSTS))
def test_a_name_that_was_rebound_to_this_server_reads_and_submits_nothing(server: Server, host: str) -> None:
    headers = {"Host": host.format(port=server.port)}
    before = [job["id"] for job in httpx.get(f"{server.url}/jobs").json()["items"]]
    for path in ("/jobs", "/", "/openapi.json", "/livez"):
        assert "TUNER_ALLOWED_HOSTS" in refused(httpx.get(f"{server.url}{path}", headers=headers))
    refused(httpx.post(f"{server.url}/jobs", json=body(), headers=headers))
    assert [job["id"] for job in httpx.get(f"{server.url}/jobs").json()["items"]] == before


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:{port}", "localhost", "LOCALHOST:{port}", "[::1]:{port}", "192.0.2.7", "tuner.example"],
)
def test_the_servers_own_names_and_addresses_are_served(server: Server, host: str) -> None:
    assert httpx.get(f"{server.url}/jobs", headers={"Host": host.format(port=server.port)}).status_code == 200


FOREIGN_ORIGINS = ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://", "",
                   "http://evil.example.tuner.example"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("origin", one_in(4, FOREIGN_ORIGINS))
def test_a_page_of_another_origin_neither_submits_nor_cancels_nor_reads(server: Server, origin: str) -> None:
    job = httpx.post(f"{server.url}/jobs", json=body(reuse=True)).json()
    headers = {"Origin": origin}
    assert "only pages of this server" in refused(httpx.post(f"{server.url}/jobs/{job['id']}:cancel", headers=headers))
    refused(httpx.post(f"{server.url}/jobs", json=body(seed=3), headers=headers))
    refused(httpx.get(f"{server.url}/jobs", headers=headers))
    assert httpx.get(f"{server.url}/jobs/{job['id']}").json()["state"] != "cancelled"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_of_another_site_that_hides_its_origin_is_refused_and_a_link_is_followed(
    server: Server, site: str
) -> None:
    job = httpx.post(f"{server.url}/jobs", json=body(reuse=True)).json()
    headers = {"Sec-Fetch-Site": site}
    refused(httpx.post(f"{server.url}/jobs/{job['id']}:cancel", headers=headers))
    assert httpx.get(f"{server.url}/ui/jobs/{job['id']}", headers=headers).status_code == 200


def test_the_servers_own_pages_and_programs_that_name_no_origin_may_do_all(server: Server) -> None:
    asked = body(pair={**body()["pair"], "m": 48}, budget={"trials": 1000})
    job = httpx.post(f"{server.url}/jobs", json=asked, headers={"Origin": server.url}).json()
    behind_proxy = {"Origin": "https://tuner.example", "Host": "tuner.example", "Sec-Fetch-Site": "same-origin"}
    assert httpx.get(f"{server.url}/jobs", headers=behind_proxy).status_code == 200
    assert httpx.post(f"{server.url}/jobs/{job['id']}:cancel").status_code == 200


def test_hosts_are_read_as_browsers_write_them() -> None:
    assert [host_of(netloc) for netloc in ("A.b:1", "[::1]:8", "a:b", "[", "a/b", "u@a", "")] == [
        "a.b", "::1", None, None, None, None, None
    ]  # fmt: skip
    assert is_own("anything.example", {"*"})
    assert not is_own("anything.example", {"other.example"})
