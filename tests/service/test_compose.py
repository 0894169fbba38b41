"""Runs the commands of docker-compose.yml as processes, with its volumes as folders, because no Docker engine is
available."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.repository import ROOT
from tests.support.waiting import wait_until

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
#: The default profiles, as Compose reads them.
DEFAULT = set(re.findall(r"^COMPOSE_PROFILES=(.*)$", (ROOT / ".env").read_text(), re.MULTILINE)[0].split(","))
#: The services or the profile that each documented way to start uses.
WAYS = {
    "up": DEFAULT,
    "up server": {"server"},
    "up gpu": {"gpu"},
    "--profile cluster up": {"cluster"},
    "--profile gpu up": {"gpu"},
}
_ENV = re.compile(r"^ENV (\w+)=(\S+)$", re.MULTILINE)


def started_by(names: set[str]) -> dict[str, Any]:
    """Services that start: those without a profile, those of an active profile, and named ones (which activate their
    profile)."""
    services = COMPOSE["services"]
    profiles = names | {profile for name in names for profile in services.get(name, {}).get("profiles", [])}
    return {
        name: one
        for name, one in services.items()
        if "profiles" not in one or profiles & set(one["profiles"]) or name in names
    }


@pytest.mark.parametrize("way", WAYS)
def test_one_service_has_the_port_and_one_writes_the_data(way: str) -> None:
    running = started_by(WAYS[way])
    ports = [port for one in running.values() for port in one.get("ports", [])]
    writers = [name for name, one in running.items() if "data:/data" in one.get("volumes", [])]
    assert (len(ports), len(writers)) == (1, 1), running.keys()


def test_what_starts_alone_is_the_server_with_a_simulated_card() -> None:
    (only,) = started_by(DEFAULT).values()
    assert only["command"][-2:] == ["--gpu", "simulated:h200"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Engine:
    """Runs containers' commands with the image's environment; each volume is a folder, each port a free port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = {"8000": str(free_port()), "8786": str(free_port())}
        self.url = f"http://127.0.0.1:{self._ports['8000']}"
        for volume in COMPOSE["volumes"]:
            (folder / volume).mkdir()

    def here(self, text: str) -> str:
        """Replaces paths and addresses with those of this machine."""
        text = re.sub(r"/(data|tls|tmp)\b", lambda found: str(self.folder / found[1]), text)
        text = text.replace("//scheduler:", "//127.0.0.1:").replace("0.0.0.0", "127.0.0.1")
        return re.sub(r"\b(8000|8786)\b", lambda found: self._ports[found[1]], text)

    def environment(self, service: str) -> dict[str, str]:
        """The environment of the image and of the service."""
        own = dict(_ENV.findall((ROOT / "Dockerfile").read_text())) | COMPOSE["services"][service].get(
            "environment", {}
        )
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, **{name: self.here(value) for name, value in own.items()}}

    def command(self, service: str, *given: str) -> list[str]:
        """The container's command: the entrypoint and then `given`, or the service's command."""
        one = COMPOSE["services"][service]
        words = [*one.get("entrypoint", ["tuner"]), *(given or one.get("command", []))]
        return [self.here(word) for word in words]

    def run(self, service: str, *given: str) -> str:
        """Runs `docker compose run SERVICE ...`; returns its output."""
        command = self.command(service, *given)
        done = subprocess.run(
            command,
            env=self.environment(service),
            cwd=self.folder / "data",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
        return done.stdout

    @contextmanager
    def up(self, service: str) -> Iterator[None]:
        """Runs the service for the duration of the block."""
        log = (self.folder / f"{service}.log").open("w")
        with (
            log,
            subprocess.Popen(
                self.command(service), env=self.environment(service), cwd=self.folder / "data", stdout=log, stderr=log
            ) as process,
        ):
            try:
                yield
                assert process.poll() is None, (self.folder / f"{service}.log").read_text()
            finally:
                process.terminate()

    def is_ready(self) -> bool:
        """Whether the health check succeeds."""
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False


def make_token(engine: Engine, service: str) -> str:
    return engine.run(service, "token", "create", "--owner", "ann", "--role", "admin").strip()


def statuses(engine: Engine, secret: str) -> tuple[int, int]:
    """The statuses without a token and with one."""
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.get(f"{engine.url}/jobs").status_code, httpx.get(f"{engine.url}/jobs", headers=headers).status_code


# In CI, the next test makes a token in one container and uses it in another.
@pytest.mark.soak
@pytest.mark.slow
def test_a_token_that_is_made_beside_the_server_is_one_of_the_server(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    secret = make_token(engine, "server")
    with engine.up("server"):
        wait_until(engine.is_ready)
        assert statuses(engine, secret) == (401, 200)
        second = make_token(engine, "server")
        assert statuses(engine, second) == (401, 200)
    assert list((tmp_path / "data").rglob("tuner.db")) == [tmp_path / "data" / "tuner.db"]


@pytest.mark.slow
def test_the_cluster_comes_up_and_measures(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    services = started_by({"cluster"})
    assert set(services) == {"certificates", "scheduler", "cluster-server", "cluster-worker"}
    engine.run("certificates")
    secret = make_token(engine, "cluster-server")
    with ExitStack() as stack:
        for name in ("scheduler", "cluster-server", "cluster-worker"):
            stack.enter_context(engine.up(name))
        wait_until(engine.is_ready, pause_s=0.1)
        assert statuses(engine, secret) == (401, 200)
        found = httpx.get(f"{engine.url}/targets", headers={"Authorization": f"Bearer {secret}"})
        assert "simulated:h200" in found.text


def test_an_engine_builds_and_starts_the_service(tmp_path: Path) -> None:
    """Runs only with a Docker engine: builds the image and runs `docker compose up server`."""
    engine = shutil.which("docker")
    if engine is None or subprocess.run([engine, "info"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no Docker engine answers here")
    compose = [
        engine,
        "compose",
        "--project-directory",
        str(ROOT),
        "-p",
        f"tuner-{tmp_path.name}",
        "--profile",
        "server",
    ]
    try:
        subprocess.run([*compose, "up", "--build", "--detach", "server"], check=True, timeout=1800)
        wait_until(lambda: answers("http://127.0.0.1:8000/readyz"), 120)
        pair = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256}
        job = httpx.post("http://127.0.0.1:8000/jobs", json={"pair": pair, "budget": {"trials": 12}}).json()
        wait_until(lambda: httpx.get(f"http://127.0.0.1:8000/jobs/{job['id']}").json()["state"] == "succeeded", 120)
    finally:
        subprocess.run([*compose, "down", "--volumes"], check=False, timeout=120)


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
