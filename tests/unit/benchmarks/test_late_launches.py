"""What the benchmark of late launches takes, without a card."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from benchmarks.trust.late_launches import CHAINS, PAIRS, Watched, busy_cores, chosen
from tuner.errors import InvalidInput


def test_all_rows_are_taken_or_those_that_are_named() -> None:
    known = chosen([])
    assert {*PAIRS, *CHAINS} < set(known)
    assert all(problem.workload.launch_ops for name, problem in known.items() if name not in (*PAIRS, *CHAINS))
    assert list(chosen(["llama3-8b/m1"])) == ["llama3-8b/m1"]
    with pytest.raises(InvalidInput, match="no row is called llama3-8b/m2"):
        chosen(["llama3-8b/m2"])


def test_what_a_launch_takes_the_host_is_kept() -> None:
    class Graph:
        def launch(self, stream: object) -> None:
            assert stream == "stream"
            time.sleep(0.01)

    watched = Watched(graph=Graph())
    watched.launch("stream")
    (host_us,) = watched.host_us
    assert 10_000 <= host_us < 100_000


def test_cores_are_busy_as_long_as_is_asked() -> None:
    others = {process.pid for process in multiprocessing.active_children()}  # of tests before this one
    with busy_cores(2):
        pids = [process.pid for process in multiprocessing.active_children() if process.pid not in others]
        assert len(pids) == 2
        until = time.monotonic() + 20
        while min(map(ticks_of, pids)) < 5:
            assert time.monotonic() < until, "they compute nothing"
            time.sleep(0.02)
    assert not {process.pid for process in multiprocessing.active_children()} - others


def ticks_of(pid: int | None) -> int:
    """What a process computed, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])
