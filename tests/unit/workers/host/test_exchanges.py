"""What is said to the process at a card, and what becomes of its answers and of its end: with processes that are none,
so that nothing is started."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.rogues import HELLO
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Stage
from tuner.errors import Quarantined, WorkerError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.host import gpu_process
from tuner.workers.host.gpu_process import ChildLost, GpuProcesses
from tuner.workers.protocol import messages
from tuner.workers.timing.library_choice import Picked

PROBLEM, OTHER = (
    Problem(workload=ffn_pair(m=m, d_in=64, d_hidden=64, d_out=64), objective=Objective()) for m in (16, 32)
)
REQUEST = messages.EvaluateRequest(problem=PROBLEM, work=messages.Work(plan_kind=PlanKind.LIBRARY))
PICKED = Picked(choices=(3, 1), first_us=2.0, best_us=1.0)
LIMITS = Limits(start_deadline_s=7.0, prepare_deadline_s=60.0)
FAILED = messages.EvaluateAnswer(
    outcome=Failed(stage=Stage.LAUNCH, kind=FailureKind.OUT_OF_MEMORY, reason="it does not fit"), poisoned=True
)
LOST = ChildLost(FailureKind.CRASH, "the GPU process died (exit code 4)")

#: The answer to a request, which may be the end of the process.
Behaviour = Callable[[messages.Request], messages.Answer | ChildLost]


class NoProcess:
    """Has the methods of `GpuProcess`. One that is dead loses what it is asked."""

    behaviour: Behaviour
    all: list[NoProcess]

    def __init__(self, uuid: str, main: object) -> None:
        self.pid, self.age_s, self.is_dead = len(self.all) + 1, 100.0, False
        self._answers = deque[messages.Answer | ChildLost]()
        self.deadlines_s: list[float] = []
        self.all.append(self)

    def is_alive(self) -> bool:
        return not self.is_dead

    def send(self, request: messages.Request, deadline_s: float) -> None:
        self._answers.append(HELLO if isinstance(request, messages.StartRequest) else self.behaviour(request))

    def receive(self, deadline_s: float) -> messages.Answer:
        self.deadlines_s.append(deadline_s)
        answer = self._answers.popleft()
        if self.is_dead or isinstance(answer, ChildLost):
            self.is_dead = True
            raise answer if isinstance(answer, ChildLost) else LOST
        return answer

    def kill(self) -> None:
        self.is_dead = True

    end = kill


@pytest.fixture
def all_of_them(monkeypatch: pytest.MonkeyPatch) -> list[NoProcess]:
    """The processes in the order in which they are started."""
    monkeypatch.setattr(gpu_process, "GpuProcess", NoProcess)
    monkeypatch.setattr(NoProcess, "all", found := list[NoProcess](), raising=False)
    return found


def processes_that(monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour) -> GpuProcesses:
    monkeypatch.setattr(NoProcess, "behaviour", staticmethod(behaviour), raising=False)
    return GpuProcesses("GPU-0", b"", LIMITS)


def picks(request: messages.Request) -> messages.Answer:
    """Prepares a problem, and notes how often the same choice was passed on."""
    assert isinstance(request, messages.PrepareRequest)
    before = request.picked
    return messages.PrepareAnswer(picked=replace(before, first_us=before.first_us + 1) if before else PICKED)


@pytest.mark.usefixtures("all_of_them")
def test_what_was_picked_for_a_problem_is_passed_to_the_next_one_of_no_other_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = processes_that(monkeypatch, picks)
    for seen_us in (2.0, 3.0):
        assert processes.ready(PROBLEM) is None
        assert processes._picked[PROBLEM].first_us == seen_us
        processes.replace(PROBLEM)
    processes.ready(OTHER)
    assert (processes._picked[OTHER].first_us, processes._picked[PROBLEM].first_us) == (2.0, 3.0)


def test_a_dead_spare_is_made_up_for(monkeypatch: pytest.MonkeyPatch, all_of_them: list[NoProcess]) -> None:
    processes = processes_that(
        monkeypatch, lambda request: LOST if isinstance(request, messages.EvaluateRequest) else picks(request)
    )
    processes.ready(PROBLEM)
    first, spare = all_of_them
    spare.is_dead = True
    with pytest.raises(ChildLost):
        processes.ask(REQUEST, 5.0)
    assert first.is_dead
    assert processes.ready(PROBLEM) is None
    assert processes.pid not in (first.pid, spare.pid)


def test_a_problem_that_cannot_be_prepared_is_an_answer_and_the_next_process_prepares_others(
    monkeypatch: pytest.MonkeyPatch, all_of_them: list[NoProcess]
) -> None:
    def only_others(request: messages.Request) -> messages.Answer:
        assert isinstance(request, messages.PrepareRequest)
        return FAILED if request.problem == PROBLEM else picks(request)

    processes = processes_that(monkeypatch, only_others)
    assert processes.ready(PROBLEM) is FAILED
    assert all_of_them[0].is_dead, "a failure may have left its context unusable"
    assert processes.ready(OTHER) is None


@pytest.mark.usefixtures("all_of_them")
def test_a_process_that_dies_of_a_problem_is_the_workers_fault_and_not_the_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = processes_that(monkeypatch, lambda request: LOST)
    with pytest.raises(WorkerError, match=r"while it prepared the problem: .*exit code 4") as lost:
        processes.ready(PROBLEM)
    assert not isinstance(lost.value, (ChildLost, Quarantined))
    assert processes.pid is None


def test_a_start_and_a_preparation_have_their_deadlines(
    monkeypatch: pytest.MonkeyPatch, all_of_them: list[NoProcess]
) -> None:
    processes_that(monkeypatch, picks).ready(PROBLEM)
    start_s, prepare_s = all_of_them[0].deadlines_s
    assert 6.0 < start_s <= LIMITS.start_deadline_s
    assert prepare_s == LIMITS.prepare_deadline_s
