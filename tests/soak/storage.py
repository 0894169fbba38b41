"""A server whose database is locked by another program, or whose disk is temporarily full, keeps every trial and ends
its job.

python -m tests.soak.storage [--size 60] [--seed 1]

Each unit is one job and one fault at a random moment: a foreign lock of 0.1, 1, 10 or 60 s, or a full disk that
is freed later. The disk is a separate file system if one can be mounted; otherwise, the size of the server's files is
limited.
"""

from __future__ import annotations

import random
import resource
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.soak.cluster import FINAL, LIMIT_S, NUM_TRIALS, problem_of, recorded, rows
from tests.soak.program import Program, Row, Step, main, total
from tests.support.forked import Forked, command
from tests.support.serving import body

FAULTS = ("lock of 0.1 s", "full disk", "lock of 1 s", "lock of 10 s", "full disk", "lock of 60 s")
TRIAL_S = "0.3"
#: Size of the mounted file system; a job's database takes less than half of it.
DISK_BYTES = 24 * 2**20


@contextmanager
def locked(folder: Path, seconds: float) -> Iterator[None]:
    """Holds a write transaction of another program."""
    yield
    with closing(sqlite3.connect(folder / "data" / "tuner.db", isolation_level=None, timeout=30)) as stranger:
        stranger.execute("begin immediate")
        time.sleep(seconds)
        stranger.execute("rollback")


def mounted(data: Path, ends: ExitStack) -> bool:
    """Mounts a small file system for the data folder; returns whether that was possible."""
    data.mkdir()
    size = f"size={DISK_BYTES}"
    with suppress(OSError):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(data)], capture_output=True)
        if done.returncode == 0:
            ends.callback(subprocess.run, ["umount", "-l", str(data)], check=True)
            return True
    return False


def fill_for(seconds: float, folder: Path, server: Forked, *, is_mounted: bool) -> bool:
    """Fills the disk for `seconds`; returns whether the server reported that it cannot write."""
    ballast = folder / "data" / "ballast"
    if is_mounted:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    end, was_said = time.monotonic() + seconds, False
    while time.monotonic() < end:
        with suppress(httpx.HTTPError):
            was_said = was_said or httpx.get(f"{server.line()}/readyz", timeout=30).status_code == 503
        time.sleep(0.1)
    if is_mounted:
        ballast.unlink()
    else:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return was_said


def work(step: Step) -> list[Row]:
    """Runs one job with its fault."""
    chance, fault = random.Random(step.seed), FAULTS[step.first % len(FAULTS)]
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder, is_mounted = Path(name), False
        if fault == "full disk":
            is_mounted = mounted(folder / "data", ends)
        own = ("serve", "--port", "0", "--data", str(folder / "data"), "--gpu", "simulated:h200")
        server = Forked(command, *own, log=folder / "log", TUNER_LOG_LEVEL="error", TUNER_SIMULATED_LATENCY_S=TRIAL_S)
        ends.callback(server.kill)
        asked = body(budget={"trials": NUM_TRIALS, "seconds": 3600})
        httpx.post(f"{server.line()}/jobs", json=asked, timeout=60).raise_for_status()
        _wait_for(folder, chance.randrange(1, NUM_TRIALS // 2))
        before, was_said = recorded(folder), True
        if fault == "full disk":
            was_said = fill_for(chance.uniform(1.0, 5.0), folder, server, is_mounted=is_mounted)
        else:
            with locked(folder, float(fault.split()[2])):
                pass
        wrong = _end(folder, before)
        if wrong:
            shutil.copy(folder / "log", Path(tempfile.gettempdir()) / f"storage-{step.seed}.log")
    row: dict[str, Any] = {"fault": fault, "jobs": 1, "trials": NUM_TRIALS, "on_a_disk_of_its_own": int(is_mounted)}
    return [row | {"told": int(was_said), "lost": int(bool(wrong)), "wrong": wrong}]


def _wait_for(folder: Path, num_trials: int) -> None:
    end = time.monotonic() + LIMIT_S
    while rows(folder, "select count(*) from trials")[0][0] < num_trials and time.monotonic() < end:
        time.sleep(0.05)


def _end(folder: Path, before: dict[tuple[str, int], tuple[Any, ...]]) -> str:
    """Waits for the job to end; returns what is wrong, or an empty text."""
    end = time.monotonic() + LIMIT_S
    while rows(folder, "select state from jobs")[0][0] not in FINAL:
        if time.monotonic() > end:
            return f"it did not end in {LIMIT_S:g} s"
        time.sleep(0.2)
    now = recorded(folder)
    lost = [key for key, row in before.items() if now.get(key) != row]
    return f"gone or changed: {lost}" if lost else problem_of(folder)


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no job lost anything, and that clients got an error for a full disk."""
    sums = total(({name: value for name, value in row.items() if name != "wrong"} for row in rows), "fault")
    wrong = [f"{row['fault']}: {row['wrong']}" for row in rows if row["wrong"]]
    wrong += [f"{row['fault']}: {row['jobs'] - row['told']} jobs did not report it" for row in sums if not row["told"]]
    return sums, wrong


PROGRAM = Program(name="storage", unit="faults", size=60, step=1, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
