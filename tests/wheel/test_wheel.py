"""The wheel, installed into empty environments elsewhere, is all that one needs. Installs from PyPI."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.repository import ROOT

pytestmark = pytest.mark.timeout(600)

SERVER_ONLY = ["alembic", "fastapi", "numpy", "optuna", "pydantic", "sqlalchemy", "uvicorn"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment outside of the checkout, and an empty directory to work in."""

    bin: Path
    directory: Path

    def run(self, *command: str, timeout_s: float = 60.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, with nothing of ours in its variables."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.directory,
            env=self.variables | variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    @property
    def variables(self) -> dict[str, str]:
        """This process' variables without Python's and tuner's own."""
        return {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TUNER_", "VIRTUAL"))
        }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what the Dockerfile copies, and nothing else: so an image has all that it needs, too."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        for name in line.split()[1:-1] if line.startswith("COPY ") else ():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source)]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("tuner-*.whl")
    return wheel


def install(folder: Path, requirement: str) -> Environment:
    venv.create(folder / "venv", with_pip=True)
    environment = Environment(bin=folder / "venv/bin", directory=folder / "elsewhere")
    environment.directory.mkdir()
    installed = environment.run(
        "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, timeout_s=500
    )
    assert installed.returncode == 0, installed.stderr
    return environment


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(tmp_path_factory.mktemp("base"), str(wheel))


@pytest.fixture(scope="module")
def server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(tmp_path_factory.mktemp("server"), f"{wheel}[server]")


@pytest.fixture(scope="module")
def address(server: Environment) -> Iterator[str]:
    """A running server, started from an empty directory, that simulates an H200."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(server.bin / "tuner"), "serve", "--port", str(port), "--data", "data", "--gpu", "simulated:h200"]
    log = (server.directory / "server.log").open("w")
    with subprocess.Popen(command, cwd=server.directory, env=server.variables, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 60
            while not is_ready(url):
                assert process.poll() is None, (server.directory / "server.log").read_text()
                assert time.monotonic() < deadline, "the server is not ready after a minute"
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            log.close()


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz").status_code == 200
    return False


def test_the_wheel_holds_the_device_files_the_migrations_the_pages_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for pattern in (
        r"workers/kernels/chain\.cuh",
        r"tuner/migrations/env\.py",
        r"tuner/migrations/versions/0001_\w+\.py",
        r"tuner/api/templates/.+\.html",
        r"tuner-.*\.dist-info/licenses/LICENSE",
    ):
        assert any(re.fullmatch(pattern, name) for name in names), pattern
    assert [name for name in names if name.endswith((".pyc", ".db", ".log"))] == []
    assert [name for name in names if name.startswith(("tests", "benchmarks", "docs", "migrations"))] == []


def test_the_base_install_is_client_and_command_line_only(base: Environment) -> None:
    frozen = base.run("python", "-m", "pip", "list", "--format=freeze").stdout.lower()
    installed = {line.split("==")[0] for line in frozen.splitlines()}
    assert installed >= {"tuner", "httpx", "click", "rich"}
    assert installed & set(SERVER_ONLY) == set()
    for program in ("tuner", "tuner-client"):
        helped = base.run(program, "--help")
        assert helped.returncode == 0, helped.stderr
        assert "Usage" in helped.stdout


def test_serving_from_the_base_install_says_what_to_install(base: Environment) -> None:
    refused = base.run("tuner", "serve")
    assert refused.returncode != 0
    assert "tuner[server]" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_installed_worker_renders_a_source(server: Environment) -> None:
    program = (
        "from tuner.core.schedule.ordering import Tile, Tiling\n"
        "from tuner.core.problem.workload import ffn_pair\n"
        "from tuner.workers.source.render import render\n"
        "tile = Tile(m=64, n=64, k=32)\n"
        "print(render(ffn_pair(m=64, d_in=64, d_hidden=64, d_out=64),"
        " Tiling(tiles=(tile, tile), num_stages=3, num_warps=4)))"
    )
    rendered = server.run("python", "-c", program)
    assert rendered.returncode == 0, rendered.stderr
    assert "__global__" in rendered.stdout


def test_a_job_runs_to_its_end_and_the_base_installs_client_fetches_the_result(
    server: Environment, base: Environment, address: str
) -> None:
    pair = {"kind": "ffn", "m": 64, "d_in": 256, "d_hidden": 512, "d_out": 256}
    posted = httpx.post(f"{address}/jobs", json={"pair": pair, "budget": {"trials": 6}})
    assert posted.status_code == 202, posted.text
    job = posted.json()
    watched = base.run("tuner-client", "watch", job["id"], TUNER_URL=address)
    assert watched.returncode == 0, watched.stderr
    best = httpx.get(f"{address}/jobs/{job['id']}/best").json()
    assert best["simulated"] is True
    assert (server.directory / "data").is_dir()
    fetched = base.run("tuner-client", "fetch", "best", "--job", job["id"], "-o", "best.zip", TUNER_URL=address)
    assert fetched.returncode == 0, fetched.stderr
    assert "manifest.json" in zipfile.ZipFile(base.directory / "best.zip").namelist()


def test_the_dashboard_renders_and_says_simulated(address: str) -> None:
    page = httpx.get(f"{address}/", follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "simulated" in page.text
