"""A GPU child may be lost in many ways: each gives a reason, and a replacement is ready soon."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.lanes import soak_unless, soaked
from tests.support.rogues import rogue
from tests.support.waiting import wait_until
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind
from tuner.errors import Quarantined, WorkerError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.host import gpu_process
from tuner.workers.host.gpu_process import ChildLost, GpuProcess, GpuProcesses
from tuner.workers.protocol import messages

PROBLEM = Problem(workload=ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64), objective=Objective())
OTHER = Problem(workload=ffn_pair(m=32, d_in=64, d_hidden=64, d_out=64), objective=Objective())
LIBRARY = messages.Work(plan_kind=PlanKind.LIBRARY)
REQUEST = messages.EvaluateRequest(problem=PROBLEM, work=LIBRARY)

Started = Callable[..., GpuProcesses]


@pytest.fixture
def started() -> Iterator[Started]:
    """Processes that behave as their "UUID" selects."""
    opened: list[GpuProcesses] = []

    def start(behaviour: str, *, start_s: float = 60.0) -> GpuProcesses:
        limits = Limits(start_deadline_s=start_s, prepare_deadline_s=60.0)
        opened.append(GpuProcesses(behaviour, b"", limits, main=rogue))
        return opened[-1]

    yield start
    for processes in opened:
        processes.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "kind", "reason"),
    soak_unless(
        lambda place, _: place < 2,
        [
            ("hangs", FailureKind.HANG, "no answer within 1 s: the GPU process was killed"),
            ("exits", FailureKind.CRASH, "died (exit code 3)"),
            ("kills itself", FailureKind.CRASH, "died (signal 9)"),
            ("sends no pickle", FailureKind.CRASH, "sent an invalid answer"),
            ("sends nothing in particular", FailureKind.CRASH, "sent an invalid answer: a dict"),
            ("sends half a message", FailureKind.HANG, "no answer within 1 s"),
            ("sends a negative length", FailureKind.CRASH, "sent an invalid answer"),
        ],
    ),
)
def test_every_way_to_lose_it_has_its_reason_and_the_next_one_holds_the_problem(
    started: Started, behaviour: str, kind: FailureKind, reason: str
) -> None:
    processes = started(behaviour)
    assert processes.ready(PROBLEM) is None
    first = processes.pid
    with pytest.raises(ChildLost) as lost:
        processes.ask(REQUEST, 1.0)
    assert lost.value.kind is kind
    assert reason in str(lost.value)
    assert first is not None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert processes.ready(PROBLEM) is None
    assert processes.pid not in (None, first)


@pytest.mark.slow
def test_one_whose_pipe_outlives_its_kill_keeps_nobody_waiting(started: Started) -> None:
    processes = started("hangs, and cannot be killed")
    processes.ready(PROBLEM)
    begin = time.monotonic()
    with pytest.raises(ChildLost, match="no answer within 1 s"):
        processes.ask(REQUEST, 1.0)
    assert time.monotonic() - begin < 10
    assert processes.ready(PROBLEM) is None


def test_ctrl_c_ends_none_that_was_only_just_started() -> None:
    process = GpuProcess("", rogue)
    assert process.pid
    os.kill(process.pid, signal.SIGINT)
    process.send(messages.StartRequest(tools_cubin=b""), 20)
    assert isinstance(process.receive(20), messages.Hello)
    process.kill()


def test_a_poisoned_one_is_replaced_at_once(started: Started) -> None:
    processes = started("is poisoned")
    processes.ready(PROBLEM)
    first = processes.pid
    answer = processes.ask(REQUEST, 5.0)
    assert isinstance(answer, messages.EvaluateAnswer)
    assert isinstance(answer.outcome, Failed)
    assert answer.outcome.kind is FailureKind.ILLEGAL_ADDRESS
    assert processes.pid != first
    assert processes.ready(PROBLEM) is None


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, seconds."""
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_the_spare_has_done_its_imports_when_it_is_needed(started: Started) -> None:
    processes = started("hangs")
    processes.ready(PROBLEM)
    (spare,) = processes._spares
    assert spare.pid is not None
    first = processes.pid
    assert first is not None
    wait_until(lambda: cpu_s(spare.pid) > 0.7 * cpu_s(first), pause_s=0.1)  # type: ignore[arg-type]
    time.sleep(1)
    with pytest.raises(ChildLost):
        processes.ask(REQUEST, 0.1)
    before_s = cpu_s(spare.pid)
    processes.ready(PROBLEM)
    assert processes.pid == spare.pid
    assert cpu_s(spare.pid) - before_s < 0.2


@pytest.mark.slow
def test_one_that_dies_between_two_candidates_costs_neither(started: Started) -> None:
    processes = started("hangs")
    processes.ready(PROBLEM)
    first = processes.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    processes._current._process.join(5)  # type: ignore[union-attr]
    assert processes.ready(PROBLEM) is None
    assert processes.pid != first


# In CI, test_exchanges.py has what is passed on.
@pytest.mark.soak
def test_what_was_picked_for_a_problem_is_passed_to_the_next_one_of_no_other_problem(
    started: Started,
) -> None:
    processes = started("keeps what was picked")
    for seen_us in (2.0, 3.0):
        processes.ready(PROBLEM)
        assert processes._picked[PROBLEM].first_us == seen_us
        processes.replace(PROBLEM)
    processes.ready(OTHER)
    assert processes._picked[OTHER].first_us == 2.0
    assert processes._picked[PROBLEM].first_us == 3.0


@pytest.mark.slow
def test_spares_that_take_over_one_behind_the_other_are_two_and_else_there_is_one(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each import takes longer than the finals that need it."""
    processes = started("hangs")
    processes.ready(PROBLEM)
    assert len(processes._spares) == 1
    processes.replace(PROBLEM)
    first, second = (spare.pid for spare in processes._spares)
    processes.replace(PROBLEM)
    assert processes.pid == first
    assert [len(processes._spares), processes._spares[0].pid] == [2, second]
    monkeypatch.setattr(gpu_process, "_IMPORTED_S", 0.0)
    processes.replace(PROBLEM)
    assert len(processes._spares) == 1


# In CI, test_exchanges.py has a dead spare.
@pytest.mark.soak
def test_a_dead_spare_is_made_up_for(started: Started) -> None:
    processes = started("exits")
    processes.ready(PROBLEM)
    spare = processes._spares[0]
    spare.kill()
    wait_until(lambda: not spare.is_alive())
    with pytest.raises(ChildLost):
        processes.ask(REQUEST, 5.0)
    assert processes.ready(OTHER) is None


# In CI, test_exchanges.py has such problems.
@pytest.mark.soak
def test_a_problem_that_cannot_be_prepared_is_an_answer_and_one_that_kills_is_the_workers_fault(
    started: Started,
) -> None:
    answer = started("cannot prepare").ready(PROBLEM)
    assert isinstance(answer, messages.EvaluateAnswer)
    assert isinstance(answer.outcome, Failed)
    assert answer.outcome.reason == "it does not fit"
    with pytest.raises(WorkerError, match=r"while it prepared the problem: .*exit code 4") as lost:
        started("dies preparing").ready(PROBLEM)
    assert not isinstance(lost.value, (ChildLost, Quarantined))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "reason"), [("refuses", "the card is on fire"), *soaked(("never starts", "within"))]
)
def test_one_that_does_not_come_up_quarantines_the_card(started: Started, behaviour: str, reason: str) -> None:
    processes = started(behaviour, start_s=1.0 if behaviour == "never starts" else 30.0)
    for _ in range(2):
        with pytest.raises(Quarantined, match=reason):
            processes.ready(PROBLEM)
    assert processes.pid is None


@pytest.mark.slow
def test_closing_leaves_no_process(started: Started) -> None:
    processes = started("hangs")
    processes.ready(PROBLEM)
    processes.replace(PROBLEM)
    pids = [processes.pid, *(spare.pid for spare in processes._spares)]
    assert len(pids) == 3
    processes.close()
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["hangs", *soaked("hangs, and cannot be killed")])
def test_closing_while_another_thread_waits_for_an_answer_ends_both_and_leaves_no_process(
    started: Started, behaviour: str
) -> None:
    processes = started(behaviour)
    processes.ready(PROBLEM)
    with ThreadPoolExecutor(1) as lane:
        asked = lane.submit(processes.ask, REQUEST, 60.0)
        time.sleep(0.3)  # it waits by now
        begin = time.monotonic()
        processes.close()
        with pytest.raises((ChildLost, Quarantined)):
            asked.result(10)
    assert time.monotonic() - begin < 10
    assert (processes.pid, list(processes._spares)) == (None, [])
    assert not [child for child in multiprocessing.active_children() if child.name == f"tuner {behaviour}"]
    with pytest.raises(Quarantined, match="this worker is closed"):
        processes.ready(PROBLEM)
