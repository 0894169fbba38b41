"""Log lines as JSON with their ids, and tracing spans if they are configured."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from tests.support.serving import Server, body


def lines_of(server: Server) -> list[dict[str, object]]:
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def finish(server: Server) -> str:
    """Runs a job to its end; returns its id."""
    job = httpx.post(f"{server.url}/jobs", json=body(), headers={"X-Request-ID": "nightly-7"}).json()
    while httpx.get(f"{server.url}/jobs/{job['id']}").json()["state"] in ("queued", "searching", "finals"):
        time.sleep(0.05)
    return str(job["id"])


@pytest.mark.slow
def test_every_line_is_an_object_with_the_ids_of_what_it_is_about(tmp_path: Path) -> None:
    options = {"TUNER_LOG_FORMAT": "json", "TUNER_LOG_LEVEL": "debug"}
    with Server(tmp_path / "data", "--gpu", "simulated:h200", **options) as server:
        job_id = finish(server)
        found = httpx.get(f"{server.url}/nothing", headers={"X-Request-ID": "bad id"})
        server.stop()
        lines = lines_of(server)
    assert all({"level", "logger", "message", "timestamp"} <= line.keys() for line in lines)
    assert len(found.headers["x-request-id"]) == 16
    [posted] = [line for line in lines if "POST /jobs" in str(line["message"])]
    assert posted["request_id"] == "nightly-7"
    trials = [line for line in lines if line.get("trial_number") and line.get("job_id") == job_id]
    assert {line["trial_number"] for line in trials} >= {str(number) for number in range(12)}
    assert [line["job_id"] for line in lines if str(line["message"]).endswith("is searching")] == [job_id]
    assert not [line for line in lines if str(line["message"]).rstrip().endswith(":")], "a sentence without an end"


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """The address of a span collector, and the spans received."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Suppresses the log."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_spans_of_requests_and_trials_are_sent_to_whoever_the_environment_names(tmp_path: Path) -> None:
    with collector() as (url, received):
        options = {"TUNER_OPENTELEMETRY": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": url,
                   "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}  # fmt: skip
        with Server(tmp_path / "data", "--gpu", "simulated:h200", **options) as server:
            job_id = finish(server)
            server.stop()
            assert "Traceback" not in server.log.read_text()
    assert {path for path, _ in received} == {"/v1/traces"}
    content = b"".join(body for _, body in received)
    assert job_id.encode() in content
    assert b"tuner.trial_number" in content
    assert b"POST" in content


# In CI, the next tests have what is asked for.
@pytest.mark.soak
def test_nothing_of_it_is_imported_where_nobody_asks() -> None:
    listed = "[name for name in sys.modules if 'opentelemetry.sdk' in name]"
    program = f"import sys, tuner.server.app, tuner.server.telemetry; print({listed})"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"
