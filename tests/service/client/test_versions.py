"""If client and service have different versions, each reports it before anything else happens."""

from __future__ import annotations

import httpx
import pytest
from click.testing import CliRunner

from tests.support.serving import Server, body
from tuner import __version__
from tuner.cli import main as tuner
from tuner.client import Client, ExitCode
from tuner.client.cli import main as tuner_client
from tuner.client.errors import Incompatible
from tuner.versions import MANIFEST_FORMAT, WIRE_HEADER, WIRE_VERSION


@pytest.fixture
def newer(server: Server, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client that uses the next version of the wire format."""
    monkeypatch.setattr("tuner.client.connection.http.WIRE_VERSION", WIRE_VERSION + 1)
    return Client(server.url)


def test_a_client_of_another_wire_version_says_so_and_nothing_is_submitted(newer: Client) -> None:
    jobs = httpx.get(f"{newer.url}/jobs").json()
    sentence = rf"speaks version {WIRE_VERSION} of the wire format, .* version {WIRE_VERSION + 1}; install the version"
    with newer, pytest.raises(Incompatible, match=sentence):
        newer.submit(body())
    assert httpx.get(f"{newer.url}/jobs").json() == jobs


def test_a_stream_of_another_wire_version_is_not_waited_for(newer: Client, job_id: str) -> None:
    with newer, pytest.raises(Incompatible):
        list(newer.events(job_id, timeout_s=5))


def test_the_command_line_has_an_exit_code_for_it(server: Server, newer: Client) -> None:
    result = CliRunner().invoke(tuner_client, ["--url", newer.url, "jobs"])
    assert result.exit_code == ExitCode.INCOMPATIBLE
    assert result.stderr.startswith("tuner-client: ")


def test_an_answer_that_names_no_version_is_taken_as_it_is() -> None:
    silent = httpx.MockTransport(lambda request: httpx.Response(200, json=[]))
    with Client(transport=silent) as client:
        assert client.targets() == []


def test_every_answer_names_the_version_and_a_request_may_leave_it_out(server: Server) -> None:
    for path, status in (("/jobs", 200), ("/livez", 200), ("/", 200), ("/jobs/job-0", 404), ("/nothing", 404)):
        answer = httpx.get(server.url + path)
        assert (answer.status_code, answer.headers[WIRE_HEADER]) == (status, str(WIRE_VERSION)), path


@pytest.mark.parametrize("asked", ["0", str(WIRE_VERSION + 1), "latest", ""])
def test_a_request_for_another_version_is_a_problem_that_names_both(server: Server, asked: str) -> None:
    answer = httpx.get(f"{server.url}/jobs", headers={WIRE_HEADER: asked})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.headers[WIRE_HEADER] == str(WIRE_VERSION)
    assert f"speaks version {WIRE_VERSION} " in answer.json()["detail"]
    assert f"asks for version {asked!r}" in answer.json()["detail"]


def test_both_programs_print_their_version_and_those_of_their_formats() -> None:
    for program in (tuner, tuner_client):
        printed = CliRunner().invoke(program, ["--version"]).stdout
        assert f"version {__version__}; wire format {WIRE_VERSION}, manifest format {MANIFEST_FORMAT}" in printed
