"""Test packages with op kinds, installed next to the program without changing it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx

from tests.support.repository import ROOT

TOYS = ROOT / "tests" / "toys"


def install(name: str, site: Path) -> Path:
    """Installs a toy into a folder of packages as an installer does: its files, and its metadata with entry points."""
    project = tomllib.loads((TOYS / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = f"toy_{name}"
    shutil.copytree(TOYS / name / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


def run(program: str, *sites: Path, timeout_s: float = 120.0, warnings: str = "error") -> str:
    """The output of a fresh process that also has the packages in `sites`. `warnings`: how they are handled.

    Raises:
        AssertionError: it failed.
    """
    paths = os.pathsep.join([*map(str, sites), str(ROOT), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, "-W", warnings, "-c", program],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


class Toys:
    """A server and a client of it, in processes that have the packages."""

    def __init__(self, *names: str, folder: Path, gpu: str = "simulated:h200") -> None:
        """Starts both."""
        for name in names:
            self.site = install(name, folder)
        self._others = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(self.site), *self._others])}
        self._environment |= {"TUNER_RUNTIME_CACHE": str(folder / "runtime")}
        self._own = ["-m", "tuner.cli", "serve", "--port", "0", "--data", str(folder / "data"), "--gpu", gpu]
        self._start()

    def _start(self) -> None:
        command = [sys.executable, *self._own]
        self._server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self._environment
        )
        assert self._server.stdout
        self.url = self._server.stdout.readline().strip()
        assert self.url

    def remove(self) -> None:
        """Restarts both without the package, on the same data."""
        self.stop()
        self._environment["PYTHONPATH"] = os.pathsep.join(self._others)
        self._start()

    def client(self, *arguments: str) -> str:
        """The output of a command."""
        command = "from tuner.client.cli import main; main()"
        return self.python(command, "--url", self.url, *arguments)

    def refused(self, *arguments: str) -> str:
        """The error message of a failing command."""
        command = "from tuner.client.cli import main; main()"
        ran = self._ran(command, "--url", self.url, *arguments)
        assert ran.returncode != 0, ran.stdout
        return ran.stdout + ran.stderr

    def python(self, program: str, *arguments: str) -> str:
        """The output of a program."""
        ran = self._ran(program, *arguments)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def _ran(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            env=self._environment,
            check=False,
            timeout=240,
        )

    def measured(self, pair: dict[str, Any], *, trials: int, seconds: int = 120) -> list[dict[str, Any]]:
        """The trials of a job that has succeeded, each of which was measured."""
        body = {"pair": pair, "budget": {"trials": trials, "seconds": seconds}}
        posted = httpx.post(f"{self.url}/jobs", json=body)
        assert posted.status_code == 202, posted.text
        job = posted.json()["id"]
        self.client("watch", job)
        found = httpx.get(f"{self.url}/jobs/{job}").json()
        listed = [json.loads(line) for line in self.client("trials", job, "--json").splitlines()]
        failed = [one["outcome"] for one in listed if one["outcome"]["kind"] != "measured"]
        assert (found["state"], found["reason"], failed) == ("succeeded", "", []), (found, failed)
        return listed

    def stop(self) -> None:
        """Stops the server."""
        with self._server:
            self._server.terminate()
