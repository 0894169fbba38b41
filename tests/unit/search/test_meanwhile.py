"""Work in a fork of a search's process: it does not change choices, it may die, and it does not outlive the search."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Hashable
from pathlib import Path

import pytest

from tests.support.builders import measured
from tests.support.repository import ROOT
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import Trial
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search import SearchOrder
from tuner.search.meanwhile import Begin, Calls, Take, in_fork

pytestmark = pytest.mark.slow

LIMIT_S = 120
ORDER = SearchOrder(
    workload=ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256), gpu=CATALOGUE["h200"], seed=3, num_trials=60
)

#: Each test uses a process with one thread, as a search does, since pytest's workers have more.
RUN = """
import os, signal, sys, time
from tuner.search.meanwhile import in_fork
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN + code], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_calls_are_done_elsewhere_in_their_order_and_taken_in_any() -> None:
    out = run("take = in_fork({n: os.getpid for n in range(5)}); print(os.getpid(), *map(take, (3, 0, 1, 2, 4)))")
    here, *elsewhere = out.split()
    assert len(elsewhere) == 5
    assert set(elsewhere) != {here}
    assert len(set(elsewhere)) == 1


def test_what_a_dead_fork_did_not_give_is_done_here() -> None:
    out = run(
        "take = in_fork({'pid': os.getpid, 'slow': lambda: time.sleep(os.getpid() != here and 60) or 'done'})\n"
        "pid = take('pid'); os.kill(pid, signal.SIGKILL)\n"
        "print(take('slow'), pid != here)".replace("take = ", "here = os.getpid()\ntake = ", 1)
    )
    assert out.split() == ["done", "True"]


def test_a_call_that_fails_elsewhere_fails_here_and_forks_end_with_what_they_were_begun_for() -> None:
    failed = "take = in_fork({'x': lambda: 1 / 0})\ntry: take('x')\nexcept ZeroDivisionError: print('so it does')\n"
    ended = (
        "take = in_fork({'pid': os.getpid, 'slow': lambda: time.sleep(60)})\npid = take('pid')\ndel take\n"
        "try: os.kill(pid, 0)\nexcept ProcessLookupError: print('gone')\n"
    )
    a_later_fork_ends_no_earlier_one = (
        "earlier = [in_fork({'first': os.getpid, 'second': lambda: time.sleep(0.5) or os.getpid()})]\n"
        "def forget():\n    earlier.clear()\n    return 'forgotten'\n"
        "later = in_fork({'forget': forget})\n"
        "print(later('forget'), earlier[0]('first') == earlier[0]('second') != os.getpid())"
    )
    out = run(failed + ended + a_later_fork_ends_no_earlier_one)
    assert out.splitlines() == ["so it does", "gone", "forgotten True"]


def test_a_fork_ends_when_nobody_can_read_from_it() -> None:
    code = RUN + "take = in_fork({'pid': os.getpid, **{n: (lambda: bytes(10**6)) for n in range(9)}})\n"
    code += "print(take('pid'), flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        fork = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        end = time.monotonic() + LIMIT_S
        while Path(f"/proc/{fork}/cmdline").exists() and Path(f"/proc/{fork}/cmdline").read_bytes():
            assert time.monotonic() < end, f"{fork} is still there"
            time.sleep(0.02)


def chosen(begin: Begin | None, num: int) -> list[Candidate]:
    """The choices of a search with each candidate in flight together with four others."""
    searcher, on_their_way, found = ORDER.begin(begin), list[Candidate](), list[Candidate]()
    while len(found) < num:
        while len(on_their_way) < 5 and (candidate := searcher.ask()):
            on_their_way.append(candidate)
            found.append(candidate)
        outcome = measured(100.0 + len(found) * 7 % 13)
        number = len(found) - len(on_their_way)
        searcher.tell(
            Trial(
                number=number,
                candidate=on_their_way.pop(0),
                outcome=outcome,
                num_known=number,
                started_at=1.0,
                finished_at=2.0,
            )
        )
    return found


def count_taken(num: int) -> tuple[bool, int, int]:
    """Whether a search with forks makes the same choices as without; the number of calls taken from forks, and of their
    names."""
    names = list[Hashable]()

    def counting(calls: Calls) -> Take:
        take = in_fork(calls)
        return lambda name: (names.append(name), take(name))[1]

    return chosen(counting, num) == chosen(None, num), len(names), len(set(names))


# In CI, calls are done elsewhere in their order and taken in any.
@pytest.mark.soak
def test_a_search_chooses_the_same_with_forks() -> None:
    out = run(
        "from tests.support.kept_tilings import kept\nfrom tests.unit.search.test_meanwhile import count_taken\n"
        "with kept(with_forecasts=False):\n    print(*count_taken(22))"
    )
    same, num_taken, num_names = out.split()
    assert same == "True"
    assert int(num_taken) >= 4, "guesses and draws come from forks"
    assert num_names == num_taken
