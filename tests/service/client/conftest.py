"""A server in a separate process with one finished job, and the command line configured for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.serving import Server, body
from tuner.client import Client
from tuner.client.cli import main
from tuner.client.delivery.environment import Asker

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a simulated H200."""
    with Server(tmp_path_factory.mktemp("client") / "data", "--gpu", "simulated:h200") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    """A client of the server."""
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="session")
def job_id(client: Client) -> str:
    """The id of a job that has succeeded."""
    job = client.submit(body())
    assert list(client.events(job["id"], timeout_s=120))[-1]["data"]["state"] == "succeeded"
    return str(job["id"])


@pytest.fixture
def run(server: Server) -> Run:
    """Runs `tuner-client` with the given arguments."""

    def run(*arguments: str, url: str = server.url) -> Result:
        result = CliRunner().invoke(main, ["--url", url, *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides any GPU of the machine that runs the tests."""
    monkeypatch.setattr("tuner.client.commands.fetch.detect", dict)
    assert Asker().gpu_name is None
