"""Idle and very slow connections are closed; active ones are kept."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.lanes import one_in
from tests.support.serving import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NUM_HALF_OPEN = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("connections") / "data"
    with Server(path, "--gpu", "none", TUNER_REQUEST_DEADLINE_S="1.5") as server:
        yield server


def num_sockets(server: Server) -> int:
    """The number of sockets that the server's process has open."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            count += link.readlink().name.startswith("socket:")
    return count


# In CI, tests/unit/service/test_server.py has a silent connection, and others (below) hinder nobody.
@pytest.mark.soak
def test_half_open_connections_are_closed_and_hinder_nobody(server: Server) -> None:
    before = num_sockets(server)
    beginnings = (b"", b"GET /jobs HT", b"GET /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nx-a: ")
    with ExitStack() as clients:
        for number in range(NUM_HALF_OPEN):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=120))
            client.sendall(beginnings[number % 3])
        assert httpx.get(f"{server.url}/livez", timeout=120).status_code == 200
        wait_until(lambda: num_sockets(server) <= before + 2)


def drip(client: socket.socket, content: bytes) -> None:
    for byte in content:
        client.sendall(bytes([byte]))
        time.sleep(0.1)


def test_a_head_that_drips_is_not_waited_for(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        began = time.monotonic()
        with pytest.raises(OSError, match=r"[Bb]roken|reset"):
            drip(client, b"GET /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 100)
        assert 1 < time.monotonic() - began < 40, "the whole request takes a minute"


def test_a_body_that_does_not_arrive_is_a_408(server: Server) -> None:
    head = b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_a_connection_that_is_used_again_and_again_lasts(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        for _ in range(5):
            assert http.get("/livez").status_code == 200
            time.sleep(0.6)


def answer_to(server: Server, *parts: bytes) -> bytes:
    """What is received before the connection closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        with suppress(OSError):  # the connection may be closed before everything is sent
            for part in parts:
                client.sendall(part)
        answer = b""
        with suppress(ConnectionResetError):
            while part := client.recv(65536):
                answer += part
        return answer


LINE = b"x-a: " + b"y" * 1000 + b"\r\n"


def test_a_head_that_is_too_large_is_refused_though_it_comes_fast(server: Server) -> None:
    head = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    end = b"connection: close\r\n\r\n"
    assert answer_to(server, head + LINE * 10 + end).startswith(b"HTTP/1.1 200")
    assert b" 200 " not in answer_to(server, head + LINE * 100 + end)
    assert b" 200 " not in answer_to(server, head + b"x-a: ", *[b"y" * 1000] * 1000, b"\r\n" + end)


def test_lines_behind_a_body_do_not_go_on_for_ever(server: Server) -> None:
    head = b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    began = time.monotonic()
    answer = answer_to(server, head + b"transfer-encoding: chunked\r\n\r\n0\r\n", *[LINE] * 20_000)
    assert b" 202 " not in answer
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("hosts", [b"", b"host: 127.0.0.1\r\nhost: evil.example\r\n"], ids=["no", "two"])
def test_a_request_names_one_host(server: Server, hosts: bytes) -> None:
    assert answer_to(server, b"GET /livez HTTP/1.1\r\n" + hosts + b"\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "lengths",
    [b"content-length: 1\r\ncontent-length: 2\r\n", b"content-length: 5\r\ntransfer-encoding: chunked\r\n"],
    ids=["two lengths", "length and chunks"],
)
def test_a_request_whose_end_is_in_doubt_is_refused(server: Server, lengths: bytes) -> None:
    head = b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    assert answer_to(server, head + lengths + b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_second_head_behind_a_whole_request_is_not_waited_for_either(server: Server) -> None:
    began = time.monotonic()
    request = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    assert answer_to(server, request + b"\r\nGET /jobs HT").startswith(b"HTTP/1.1 200")
    assert time.monotonic() - began < 60


#: In the head, each of these would take effect, or be refused.
TRAILERS = b"X-Request-ID: from-behind\r\nHost: evil.example\r\nX-Forwarded-For: 203.0.113.9\r\nOrigin: http://evil.example\r\n"


def test_lines_behind_a_body_in_chunks_are_no_headers(server: Server) -> None:
    head = b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n"
    head += b"transfer-encoding: chunked\r\ntrailer: X-Request-ID\r\n"
    answer = answer_to(server, head + b"\r\n2\r\n{}\r\n0\r\n" + TRAILERS + b"Authorization: Bearer x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 422"), "the body was accepted, but is not a job"
    assert b"from-behind" not in answer
    named = head + b"X-Request-ID: from-the-head\r\n\r\n2\r\n{}\r\n0\r\n" + TRAILERS + b"\r\n"
    assert b"x-request-id: from-the-head" in answer_to(server, named).lower()


def test_the_request_behind_one_with_trailers_has_its_own_headers(server: Server) -> None:
    first = (
        b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
    )
    second = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nX-Request-ID: second\r\n\r\n"
    answer = answer_to(server, first + b"\r\n2\r\n{}\r\n0\r\n" + TRAILERS + b"\r\n" + second)
    assert b"HTTP/1.1 422" in answer
    assert b"HTTP/1.1 200" in answer
    assert b"x-request-id: second" in answer.lower()


NUM_SILENT = 300


@pytest.mark.parametrize(
    "beginning", one_in(3, [b"GET /jobs HT", b"", b"POST /jobs HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"])
)
def test_silence_keeps_nobody_out(tmp_path: Path, beginning: bytes) -> None:
    limits = {"TUNER_MAX_CONNECTIONS": "50", "TUNER_REQUEST_DEADLINE_S": "600"}
    with Server(tmp_path / "data", "--gpu", "none", **limits) as server, ExitStack() as clients:
        kept = clients.enter_context(httpx.Client(base_url=server.url, timeout=30))
        for number in range(NUM_SILENT):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            client.sendall(beginning)
            if number % 60 == 0:
                assert kept.get("/livez").status_code == 200
        began = time.monotonic()
        assert httpx.get(f"{server.url}/livez", timeout=30).status_code == 200
        assert time.monotonic() - began < 20, "the silent ones have 600 s"
        assert num_sockets(server) < 100
        assert server.log.stat().st_size < 100_000


def test_the_last_descriptors_are_not_for_connections(tmp_path: Path) -> None:
    """Many connections at a low descriptor limit: other clients get responses, and the log stays short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as clients:
        server = clients.enter_context(Server(tmp_path / "data", "--gpu", "none", TUNER_REQUEST_DEADLINE_S="600"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        for _ in range(400):
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        wait_until(lambda: server.log.stat().st_size > 0)
        assert server.log.stat().st_size < 100_000
    assert (soft, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


# In CI, tests/unit/service/test_server.py has a peer that takes nothing.
@pytest.mark.soak
def test_an_answer_that_nobody_takes_is_given_up(server: Server) -> None:
    request = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    before = num_sockets(server)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(request * 50)
        wait_until(lambda: num_sockets(server) > before)
        wait_until(lambda: num_sockets(server) <= before, 30)
