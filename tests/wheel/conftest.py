"""A wheel, a release, and empty environments outside of the checkout with the wheel installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.repository import ROOT

#: The output of another project's package with that name.
STRANGER = "another project's package"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment outside of the checkout, and an empty directory to work in."""

    bin: Path
    directory: Path

    def run(self, *command: str, timeout_s: float = 180.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, without our variables."""
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
        """This process's variables, without those of Python and tuner."""
        return {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TUNER_", "VIRTUAL"))
        }


@cache
def installer() -> str:
    """uv, at a sixth of pip's processor time; pip where uv has no index, since it does not read pip's settings."""
    asked = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--dry-run", "--reinstall", "hatchling"]
    found = subprocess.run([*asked, "--python", sys.executable], check=False, capture_output=True, timeout=120)
    return "uv" if found.returncode == 0 else "pip"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from only the files that the Dockerfile copies; this also shows that an image has all it needs."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        for name in line.split()[1:-1] if line.startswith("COPY ") else ():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, symlinks=True)
            else:
                shutil.copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "build",
        "--installer",
        installer(),
        "--wheel",
        "--outdir",
        str(folder),
        str(source),
    ]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make release` filled, with the tools of this environment."""
    folder = tmp_path_factory.mktemp("release")
    bin_folder = Path(sys.executable).parent
    command = [
        "make",
        "--old-file=.venv/.dev",
        f"BIN={bin_folder}",
        f"DIST={folder}",
        f"INSTALLER={installer()}",
        "release",
    ]
    made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def empty(folder: Path) -> Environment:
    """An environment without any package."""
    venv.create(folder / "venv", with_pip=False)
    environment = Environment(bin=folder / "venv/bin", directory=folder / "elsewhere")
    environment.directory.mkdir()
    return environment


def pip(environment: Environment, *arguments: str) -> str:
    """Runs this process's pip on the environment, since installing pip there takes longer."""
    program = [sys.executable, "-m", "pip", "--python", str(environment.bin / "python"), "--disable-pip-version-check"]
    done = subprocess.run(
        [*program, *arguments],
        cwd=environment.directory,
        env=environment.variables,
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip_install(environment: Environment, *what: str) -> None:
    """Modules are compiled when they are used."""
    pip(environment, "install", "--quiet", "--no-compile", *what)


def install_many(environment: Environment, *what: str) -> None:
    """For many packages, with uv if it finds them."""
    if installer() == "pip":
        pip_install(environment, *what)
        return
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(environment.bin / "python")]
    done = subprocess.run(
        [*command, *what], env=environment.variables, check=False, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The base install: client and command line."""
    environment = empty(tmp_path_factory.mktemp("base"))
    pip_install(environment, str(wheel))
    return environment


@pytest.fixture(scope="session")
def server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A server's environment, installed as the base install says; another project's `workers` package is already
    there."""
    environment = empty(tmp_path_factory.mktemp("server"))
    folder = environment.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    (stranger := Path(folder) / "workers").mkdir()
    (stranger / "__init__.py").write_text(f"WHOSE = {STRANGER!r}\n")
    install_many(environment, f"{wheel}[server]")
    return environment


@contextmanager
def serving(environment: Environment) -> Iterator[str]:
    """The address of a running server, started from an empty directory, that simulates an H200."""
    command = [str(environment.bin / "tuner"), "serve", "--port", "0", "--data", "data", "--gpu", "simulated:h200"]
    log = environment.directory / "server.log"
    with (
        log.open("w") as written,
        subprocess.Popen(
            command,
            cwd=environment.directory,
            env=environment.variables,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            assert url, log.read_text()
            yield url
        finally:
            process.terminate()
