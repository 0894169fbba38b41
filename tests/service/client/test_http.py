"""The connection: interrupted streams are resumed, silence times out, and errors are the client's own types."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.serving import Server, body
from tuner.client import Client, ClientError, ExitCode, errors
from tuner.client.connection.event_lines import parse_events
from tuner.client.errors import NoResult, TimedOut, Unreachable

pytestmark = pytest.mark.slow


# In CI, tests/unit/client/test_answers.py resumes a stream.
@pytest.mark.soak
def test_a_watcher_survives_the_death_of_the_server_and_misses_nothing(tmp_path: Path) -> None:
    options = ("--gpu", "simulated:h200")
    server = Server(tmp_path / "data", *options, TUNER_SIMULATED_LATENCY_S="0.1")
    with server, Client(server.url) as client:
        job = client.submit(body(budget={"trials": 20}))
        seen = []
        for event in client.events(job["id"], timeout_s=120):
            seen.append(event)
            if len(seen) == 10:
                server.kill()
                again = Server(tmp_path / "data", *options, port=server.port)
    with again:
        ids = [event["id"] for event in seen]
        assert ids == sorted(set(ids))
        assert [e["data"]["number"] for e in seen if e["kind"] == "trial"] == list(range(20))
        assert seen[-1]["data"]["state"] == "succeeded"


# In CI, tests/unit/client/test_answers.py leaves a stream at the time limit.
@pytest.mark.soak
def test_an_endless_job_times_out(tmp_path: Path) -> None:
    slow = Server(tmp_path / "data", "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="20")
    with slow as server, Client(server.url) as client:
        job = client.submit(body())
        with pytest.raises(TimedOut):
            list(client.events(job["id"], timeout_s=0.5))


def test_a_server_that_never_answers_is_not_waited_for_beyond_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url) as client, pytest.raises(TimedOut, match="did not end within the time limit"):
            next(client.events("job-000000000000", timeout_s=0.2))


@pytest.mark.parametrize("url", ["localhost:8000", "tuner.example", "file:///tmp"])
def test_an_address_without_http_is_called_none(url: str) -> None:
    with pytest.raises(Unreachable, match="is not an address: it begins with neither http:// nor https://"):
        Client(url)


def test_a_stream_that_never_began_is_not_waited_for() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(Unreachable):
        next(client.events("job-000000000000"))


def test_a_stream_of_no_job_is_no_result(client: Client) -> None:
    with pytest.raises(NoResult, match="there is no job"):
        next(client.events("job-000000000000"))


def test_all_pages_of_a_listing_are_followed(client: Client, job_id: str) -> None:
    assert [trial["number"] for trial in client.trials(job_id, limit=5)] == list(range(12))


def test_events_are_read_as_the_standard_has_them() -> None:
    lines = [": ping", "", "id: 3", "event: trial", 'data: {"a":', "data: 1}", "", "event: end", "data: {}", ""]
    assert list(parse_events(iter(lines))) == [{"a": 1, "kind": "trial"}, {"kind": "end"}]


def test_every_error_has_an_exit_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ClientError)]
    codes = [kind.exit_code for kind in kinds]
    assert sorted(codes) == sorted(set(ExitCode) - {ExitCode.OK})
