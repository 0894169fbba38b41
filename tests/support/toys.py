"""Test packages with op kinds, installed next to the program without changing it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support import kept_tilings
from tests.support.hosted import Host
from tests.support.repository import ROOT
from tests.support.serving import Server
from tests.support.waiting import wait_until

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
        others = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(self.site), *others])}
        # The C runtime's file depends on its text and the rows of packages, so a run compiles each text once.
        runtime = Path(os.environ.get(kept_tilings.FOLDER, folder)) / "runtime"
        self._host = Host(environment | {"TUNER_RUNTIME_CACHE": str(runtime)})
        self._folder, self._num_begun = folder, 0
        self._data = folder / "data"
        self._own = "serve", "--port", "0", "--data", str(self._data), "--gpu", gpu
        self._start()

    def _start(self) -> None:
        self._server, out, log = self._begin("from tuner.cli import main; main()", *self._own)
        wait_until(lambda: "\n" in out.read_text() or "Error" in log.read_text())
        self.url = out.read_text().strip()
        assert self.url, log.read_text()

    def _begin(self, program: str, *arguments: str) -> tuple[int, Path, Path]:
        """Begins a process; returns its id and the files of what it prints and logs."""
        self._num_begun += 1
        out, log = (self._folder / f"{self._num_begun}.{name}" for name in ("out", "log"))
        out.touch()
        log.touch()
        return self._host.begin(program, *arguments, out=out, log=log), out, log

    @contextmanager
    def removed(self) -> Iterator[str]:
        """The address of a server without the packages on the same data, which takes the place of this one for a
        while."""
        self._end()
        with Server(self._data, *self._own[-2:]) as server:
            yield server.url
        self._start()

    def client(self, *arguments: str) -> str:
        """The output of a command."""
        command = "from tuner.client.cli import main; main()"
        return self.python(command, "--url", self.url, *arguments)

    def python(self, program: str, *arguments: str) -> str:
        """The output of a program."""
        status, out, log = self._ran(program, *arguments)
        assert status == 0, log
        return out

    def _ran(self, program: str, *arguments: str) -> tuple[int, str, str]:
        """The exit status of a program, what it printed, and its errors."""
        pid, out, log = self._begin(program, *arguments)
        return self._host.wait(pid), out.read_text(), log.read_text()

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
        """Stops the server and its host."""
        self._end()
        self._host.stop()

    def _end(self) -> None:
        os.kill(self._server, signal.SIGTERM)
        self._host.wait(self._server)
