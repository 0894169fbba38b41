"""Searches in separate processes: they make the same choices as one in this process, and may die at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.support.builders import measured
from tests.support.lanes import soaked
from tests.support.repository import ROOT
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import Trial
from tuner.errors import SearchLost
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search import SearchOrder, SearchProcesses, search_here

LIMIT_S = 60
PAIR = ffn_pair(m=128, d_in=256, d_hidden=512, d_out=256)
ORDER = SearchOrder(workload=PAIR, gpu=CATALOGUE["a40"], seed=3, num_trials=24)


@pytest.fixture
def processes() -> Iterator[SearchProcesses]:
    processes = SearchProcesses(2)
    yield processes
    processes.close()


def trial(number: int, candidate: Candidate) -> Trial:
    outcome = measured(100.0 + number * 7 % 13)
    return Trial(number=number, candidate=candidate, outcome=outcome, num_known=number, started_at=1.0, finished_at=2.0)


def is_there(pid: int) -> bool:
    """Whether process `pid` runs; one that has ended but was not waited for does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + LIMIT_S
    while is_there(pid):
        assert time.monotonic() < end, f"{pid} is still there"
        time.sleep(0.02)


# In CI, test_remote.py has what a search is told.
@pytest.mark.soak
def test_the_same_order_gives_the_same_candidates_here_and_in_a_process(processes: SearchProcesses) -> None:
    with search_here(ORDER) as here, processes.search(ORDER) as there:
        for number in count():
            chosen = here.ask()
            assert there.ask() == chosen
            assert there.waits_for_all == here.waits_for_all
            if chosen is None or number == 3:
                break
            assert there.think_ahead() == here.think_ahead()
            for search in (here, there):
                search.tell(trial(number, chosen))
        here.wind_up()
        there.wind_up()
        assert there.ask() == here.ask()


# In CI, test_remote.py has a lost process, and tests/service/service/test_search_processes.py kills a search.
@pytest.mark.soak
def test_a_search_goes_on_from_its_trials_when_its_process_was_killed(processes: SearchProcesses) -> None:
    history: list[Trial] = []
    with processes.search(ORDER) as search:
        for number in range(2):
            chosen = search.ask()
            assert chosen is not None
            history.append(trial(number, chosen))
            search.tell(history[-1])
        (pid,) = processes.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SearchLost, match="died"):
            search.ask()
    assert processes.pids == []
    order = replace(ORDER, history=tuple(history))
    with processes.search(order) as again, search_here(order) as here:
        assert again.ask() == here.ask()
    assert processes.pids != [pid]


def test_the_first_search_finds_a_process_that_runs_behind_the_server(processes: SearchProcesses) -> None:
    (pid,) = processes.pids
    with processes.search(ORDER) as search:
        assert processes.pids == [pid]
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + 3)
    assert search.ask() is None, "it is over, so nobody is asked"


# In CI, test_remote.py has which process a search gets.
@pytest.mark.soak
def test_a_process_is_started_for_each_search_up_to_the_most(processes: SearchProcesses) -> None:
    with processes.search(ORDER) as one, processes.search(ORDER) as two, processes.search(ORDER) as three:
        assert len(processes.pids) == 2
        assert one.ask() == two.ask() == three.ask()
    with processes.search(ORDER):
        assert len(processes.pids) == 2


# In CI, test_remote.py has a fault of a search, and another test asks one that is over.
@pytest.mark.soak
def test_a_fault_of_a_search_is_told_and_the_process_works_on_until_the_next_is_over(
    processes: SearchProcesses,
) -> None:
    broken = replace(ORDER, num_trials="many")  # type: ignore[arg-type]
    with processes.search(broken) as search, pytest.raises(TypeError):
        search.ask()
    (pid,) = processes.pids
    with processes.search(ORDER) as search:
        assert search.ask() is not None
    assert processes.pids == [pid]
    assert search.ask() is None
    assert not search.think_ahead()


# In CI, the last test sees that they ignore signals.
@pytest.mark.soak
def test_signals_are_the_servers_affair(processes: SearchProcesses) -> None:
    (pid,) = processes.pids
    os.kill(pid, signal.SIGINT)  # it has only just started
    with processes.search(ORDER) as search:
        search.ask()
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        assert search.ask() is not None
    processes.close()
    assert not is_there(pid)


_PARENT = """
import os, sys, tests.unit.search.test_processes as here
if __name__ == "__main__":
    processes = here.SearchProcesses(1)
    with processes.search(here.ORDER) as search:
        search.ask()
        print(*processes.pids, flush=True)
        if sys.argv[1] == "waits":
            sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["waits", *soaked("ends")])
def test_a_process_ends_with_its_server_however_that_ends(tmp_path: Path, how: str) -> None:
    program = tmp_path / "parent.py"
    program.write_text(_PARENT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        ignored = int(Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16)
        assert all(ignored >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM)), "the server's affair"
        if how == "waits":
            parent.kill()
        parent.wait(LIMIT_S)
        wait_until_gone(pid)
