"""What the client makes of a service's answers: streams that break off, content that is not what was asked for, and
jobs of other workloads. No server runs."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tuner.client import Client
from tuner.client.commands.fetch import recipe_lines
from tuner.client.connection import http
from tuner.client.delivery.meaning import check_jobs
from tuner.client.errors import Refused, TimedOut, Unreachable

JOB = "job-000000000001"


class Broken(httpx.SyncByteStream):
    """Some events, behind which the connection is lost."""

    def __init__(self, *events: str) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        yield from (event.encode() for event in self._events)
        raise httpx.ReadError("the connection was lost")


def event(number: int) -> str:
    return f"id: {number}\nevent: trial\ndata: {json.dumps({'id': number})}\n\n"


def stream(*events: str) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Broken(*events))


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://service", transport=httpx.MockTransport(answer))


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_RETRY_S", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_a_stream_that_breaks_off_is_resumed_behind_the_last_event_that_was_seen() -> None:
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("last-event-id"))
        match len(asked):
            case 1:
                return stream(event(1), event(2))
            case 2 | 3:
                raise httpx.ConnectError("the server is being started")
            case 4:
                return stream(event(3))
        return httpx.Response(204)

    with client_of(answer) as client:
        assert [one["id"] for one in client.events(JOB)] == [1, 2, 3]
    assert asked == [None, "2", "2", "2", "3"]


@pytest.mark.usefixtures("_at_once")
def test_a_stream_whose_server_stays_away_is_given_up_after_a_restart_would_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.05)
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("last-event-id"))
        if len(asked) == 1:
            return stream(event(1))
        raise httpx.ConnectError("refused")

    with client_of(answer) as client, pytest.raises(Unreachable, match="does not answer: refused"):
        list(client.events(JOB))
    assert len(asked) > 2


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("lost", [httpx.ReadTimeout("silent"), None], ids=["silent", "closed"])
def test_a_stream_of_a_job_that_does_not_end_is_left_at_the_time_limit(lost: Exception | None) -> None:
    """Whether nothing comes any more, or the server closes each stream at once."""

    def answer(request: httpx.Request) -> httpx.Response:
        if "last-event-id" not in request.headers:
            return stream(event(1))
        if lost is not None:
            raise lost
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"")

    with client_of(answer) as client, pytest.raises(TimedOut, match="did not end within the time limit"):
        list(client.events(JOB, timeout_s=0.05))


def test_another_artifact_than_the_one_that_was_asked_for_is_refused() -> None:
    """The other one is whole."""
    source, other = b"__global__ void kernel() {}", io.BytesIO()
    files = {"kernel.cu": {"sha256": hashlib.sha256(source).hexdigest(), "size_bytes": len(source)}}
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"simulated": False, "files": files}))
        archive.writestr("kernel.cu", source)
    content = other.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    with client_of(lambda request: httpx.Response(200, content=content)) as client:
        assert client.artifact(digest).files["kernel.cu"] == source
        for take in (client.artifact, client.content):
            with pytest.raises(Refused, match=f"its sha256 is {digest}, expected {'0' * 64}"):
                take("0" * 64)


def job(m: int = 16, **changes: Any) -> dict[str, Any]:
    pair = {"kind": "ffn", "m": m, "d_in": 64, "d_hidden": 128, "d_out": 64}
    return {"pair": pair, "target": "h200", "objective": {"l2": "cold", "regime": "burst"}} | changes


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([job(16)], "list of workloads"),
        ([job(16), job(32), job(64)], "list of workloads"),
        ([], "list of workloads"),
        ([job(16), job(32, target="h100")], "target is 'h100', but 'h200'"),
        ([job(16), job(32, objective={"l2": "warm", "regime": "burst"})], r"objective\.l2 is 'warm', but 'cold'"),
        ([job(16), job(32, objective={"l2": "cold", "regime": "sustained"})], r"objective\.regime is 'sustained'"),
    ],
    ids=["one lacks", "one more", "none", "target", "l2", "regime"],
)
def test_jobs_that_are_not_those_of_a_batch_are_refused(jobs: list[dict[str, Any]], words: str) -> None:
    asked = [job(16)["pair"], job(32)["pair"]]
    check_jobs([job(32), job(16)], asked, target="h200", l2=None, regime="burst")
    with pytest.raises(Refused, match=words):
        check_jobs(jobs, asked, target="h200", l2=None, regime="burst")


def test_where_torch_compile_is_the_library_that_is_how_to_call_it() -> None:
    torch = {"is_library": True, "library_speedup": 0.3}
    assert recipe_lines({"library": None, "torch": torch}) == [
        "torch.compile with mode='max-autotune-no-cudagraphs' in a CUDA graph, 0.300 of the vendor library's time"
    ]
    (unknown,) = recipe_lines({"library": None, "torch": {**torch, "is_library": False}})
    assert unknown.startswith("the algorithm is unknown")
