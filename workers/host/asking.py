"""Requests other than trials to a card's process: an answer of one kind arrives, or the process is lost."""

from __future__ import annotations

from typing import TypeVar

from tuner.core.trial.evaluator import Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind
from tuner.core.trial.reports.inspection import EnergyReport
from tuner.core.trial.reports.torch_time import TorchCalls

from ..protocol import messages
from .gpu_process import ChildLost, GpuProcesses

A = TypeVar("A", bound=messages.Answer)


class Asking:
    """Sends requests to the process, which has loaded a problem."""

    def __init__(self, processes: GpuProcesses, limits: Limits) -> None:
        self._processes = processes
        self._limits = limits

    def ask(self, problem: Problem, request: messages.Request, wanted: type[A], deadline_s: float, what: str) -> A:
        """The answer of the process; `what` describes the request as text.

        Raises:
            ChildLost: it died, was killed at the deadline, or answered something else.
            WorkerError: the card itself does not work any more.
        """
        answer = self._processes.ready(problem) or self._processes.ask(request, deadline_s)
        if isinstance(answer, wanted):
            return answer
        if isinstance(answer, messages.EvaluateAnswer) and isinstance(answer.outcome, Failed):  # replaced already
            raise ChildLost(answer.outcome.kind, f"{what} failed: {answer.outcome.reason}")
        self._processes.replace(problem)
        raise ChildLost(FailureKind.CRASH, f"{what} failed: an answer was out of order")

    def time_together(
        self,
        problem: Problem,
        works: tuple[messages.Work, ...],
        num_rounds: int,
        others: tuple[TorchCalls | messages.OwnProgram, ...] = (),
    ) -> messages.FinalsAnswer:
        """Has each of the works checked, then all of them timed in the same rounds, with other programs if requested.

        Raises:
            ChildLost: a work ended the process, or the deadline passed.
            WorkerError: the card itself does not work any more.
        """
        request = messages.FinalsRequest(problem=problem, works=works, num_rounds=num_rounds, others=others)
        deadline_s = self._limits.finals_s(len(works) + len(others))
        if any(other is not TorchCalls.EAGER for other in others):
            deadline_s += self._limits.torch_compile_deadline_s
        what = "the rounds" if others else "the finals"
        return self.ask(problem, request, messages.FinalsAnswer, deadline_s, what)

    def energy(self, problem: Problem, work: messages.Work) -> EnergyReport:
        """Has a work checked, and the energy of one run measured.

        Raises:
            ChildLost: it ended the process, or the deadline passed.
            WorkerError: the card itself does not work any more.
        """
        request = messages.EnergyRequest(problem=problem, work=work)
        return self.ask(problem, request, messages.EnergyAnswer, self._limits.evaluate_deadline_s, "the energy").report
