"""Connections that say nothing, or very little, do not last; those that speak do."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

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
    """Sockets that the server's process holds open."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            count += link.readlink().name.startswith("socket:")
    return count


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
        assert 1 < time.monotonic() - began < 40, "all of it takes a minute"


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
