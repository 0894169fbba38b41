"""`tuner`: starting, refusing to start, stopping, and its settings."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.support.serving import Server, body
from tuner.cli import main
from tuner.settings import Settings, is_loopback


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_the_loopback_interface_needs_no_permission(host: str) -> None:
    assert is_loopback(host)
    assert not any(is_loopback(other) for other in ("0.0.0.0", "::", "192.0.2.1", "tuner.example"))


def test_an_insecure_server_listens_everywhere(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--host", "0.0.0.0", "--insecure", "--gpu", "none") as server:
        assert server.url.startswith("http://0.0.0.0:")
        assert httpx.get(f"http://127.0.0.1:{server.port}/livez").status_code == 200


@pytest.mark.slow
def test_sigterm_ends_it_soon_and_cleanly_though_streams_are_open_and_the_job_goes_on_later(tmp_path: Path) -> None:
    arguments = ("--gpu", "simulated:h200")
    with Server(tmp_path / "data", *arguments, TUNER_SIMULATED_LATENCY_S="0.2") as server:
        job = httpx.post(f"{server.url}/jobs", json=body(budget={"trials": 12})).json()
        with httpx.stream("GET", f"{server.url}/jobs/{job['id']}/events", timeout=120) as stream:
            lines = stream.iter_lines()
            while next(lines) != "event: trial":
                pass
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 30
        assert "Traceback" not in server.log.read_text()
    with Server(tmp_path / "data", *arguments) as server:
        while (job := httpx.get(f"{server.url}/jobs/{job['id']}").json())["state"] in ("queued", "searching", "finals"):
            time.sleep(0.05)
    assert (job["state"], job["num_trials"], job["reason"]) == ("succeeded", 12, "")


@pytest.mark.slow
def test_stdout_holds_the_address_and_nothing_else(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--gpu", "simulated:h200") as server:
        httpx.get(f"{server.url}/jobs")
        server.stop()
        assert server.process.printed == f"{server.url}\n"
        assert "no figure here is a measurement" in server.log.read_text()


def test_an_answer_does_not_wait_for_a_delayed_acknowledgement(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--gpu", "none") as server, httpx.Client(base_url=server.url) as http:
        http.get("/livez")
        times = []
        for _ in range(15):
            began = time.monotonic()
            http.get("/livez")
            times.append(time.monotonic() - began)
        assert min(times) < 0.03  # each acknowledgement would be delayed by 0.04 s


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--gpu", "none"):
        result = run("serve", "--port", "0", "--data", str(tmp_path / "data"), "--gpu", "none")
        assert result.exit_code == 1
        assert str(tmp_path / "data") in result.stderr


def test_a_taken_port_and_an_unknown_gpu_are_reported_in_one_line(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = run("serve", "--port", str(taken.getsockname()[1]), "--data", data, "--gpu", "none")
    unknown = run("serve", "--port", "0", "--data", data, "--gpu", "simulated:h9000")
    for result, word in ((busy, "--port"), (unknown, "h9000")):
        assert result.exit_code == 1
        assert word in result.stderr
        assert "Traceback" not in result.stderr
        assert len(result.stderr.strip().splitlines()[-1]) < 300


def test_migrate_and_gc_work_on_a_folder_that_nobody_serves(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    (tmp_path / "data").mkdir()
    migrated = run("migrate", "--data", data)
    assert (migrated.exit_code, "tables are at revision 0" in migrated.stderr) == (0, True)
    assert (tmp_path / "data" / "tuner.db").exists()
    (tmp_path / "data" / "build").mkdir(exist_ok=True)
    (tmp_path / "data" / "build" / "old").write_bytes(b"x" * 1000)
    result = run("gc", "--data", data, "--limit", "10")
    assert (result.exit_code, "1 file," in result.stdout) == (0, True), result.output
    assert run("gc", "--data", data, "--limit", "-1").exit_code == 2


def test_an_option_goes_before_the_environment_and_that_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().port == 8000
    monkeypatch.setenv("TUNER_PORT", "9000")
    assert (Settings().port, Settings(port=7).port) == (9000, 7)
    monkeypatch.setenv("TUNER_PORT", "many")
    result = run("serve")
    assert (result.exit_code, "port" in result.stderr) == (2, True)


def test_a_server_that_has_ended_leaves_the_signals_as_they_were(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run("serve", "--port", str(taken.getsockname()[1]), "--data", str(tmp_path), "--gpu", "none").exit_code
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
