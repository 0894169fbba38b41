"""If the address belongs to a server other than tuner's, the client says so in one line, with its exit code."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from tuner.client import Client, ClientError, ExitCode
from tuner.client.cli import main
from tuner.client.connection import http


@contextmanager
def stranger(content_type: str, body: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """The address of a server that always returns the same body with status 200; with a pause, byte by byte."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            length = f"content-length: {len(body)}\r\n" if pause_s else ""
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n{length}connection: close\r\n\r\n"
            self.wfile.write(head.encode())
            try:
                for piece in [body[at : at + 1] for at in range(len(body))] if pause_s else [body]:
                    self.wfile.write(piece)
                    time.sleep(pause_s)
            except OSError:
                return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


PAIR = ["--m", "16", "--d-in", "256", "--d-hidden", "512", "--d-out", "256"]
COMMANDS = [
    ["status", "job-0"],
    ["jobs"],
    ["trials", "job-0"],
    ["watch", "job-0"],
    ["cancel", "job-0"],
    ["best", "job-0"],
    ["best", *PAIR],
    ["submit", *PAIR],
    ["samples", "job-0", "0"],
    ["counters", "job-0", "0"],
    ["fetch", "best", *PAIR],
]
ANSWERS = {
    "a page": ("text/html", b"<html>Please log in</html>"),
    "nothing": ("text/plain", b""),
    "half a document": ("application/json", b'{"id": "job-0", '),
    "a list": ("application/json", b"[]"),
    "null": ("application/json", b"null"),
    "another document": ("application/json", b'{"hello": "world"}'),
    "a document that begins like one of ours": (
        "application/json",
        b'{"id": 7, "items": {}, "job_id": 3, "match": "exact"}',
    ),
    "bytes": ("application/json", b"\xff\xfe\x00"),
}


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_200_that_is_no_answer_of_ours_is_told_in_one_line(answer: str, command: list[str]) -> None:
    with stranger(*ANSWERS[answer]) as url:
        result = CliRunner().invoke(main, ["--url", url, *command])
    is_explained = result.exit_code == ExitCode.UNREACHABLE and "not a tuner service" in result.stderr
    # A response that begins like ours is read as far as the command needs it.
    is_other = result.exit_code == ExitCode.REFUSED and "what came back is not the requested one" in result.stderr
    is_read = answer.startswith("a document that") and (result.exit_code == 0 or is_other)
    assert is_explained or is_read, (result.output, result.exception)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("answer", [name for name in ANSWERS if not name.startswith("a document that")])
def test_the_library_raises_its_own_errors_alone(answer: str) -> None:
    with stranger(*ANSWERS[answer]) as url, Client(url) as client:
        for ask in (
            lambda: client.job("job-0"),
            lambda: list(client.jobs()),
            lambda: list(client.events("job-0", timeout_s=20)),
            lambda: client.artifact("0" * 64),
        ):
            with pytest.raises(ClientError):
                ask()


def test_a_body_that_drips_is_given_up_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWER_DEADLINE_S", 0.5)
    with stranger("application/json", b" " * 2000, pause_s=0.05) as url, Client(url) as client:
        began = time.monotonic()
        with pytest.raises(ClientError, match=r"did not complete its response in 0\.5 s"):
            client.job("job-0")
        assert time.monotonic() - began < 50, "all of it takes 100 s"
