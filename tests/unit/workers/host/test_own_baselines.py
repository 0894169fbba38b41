"""User-supplied programs next to finalists: each runs alone first, and any failure is reported by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.support.builders import spec
from tuner.core.schedule.candidate import LIBRARY
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import FailureKind
from tuner.core.trial.reports.baselines import Baseline, BaselineTime, CudaSource, PythonFunction
from tuner.errors import BuildError, WorkerError
from tuner.workers.host.asking import Asking
from tuner.workers.host.gpu_process import ChildLost, GpuProcesses
from tuner.workers.host.own_baselines import time_baselines
from tuner.workers.protocol.messages import FinalsAnswer, OtherTimes, Work

PROBLEM = Problem(workload=spec().workload, objective=spec().objective)
WORKS = (Work(plan_kind=LIBRARY.plan_kind), Work(plan_kind=PlanKind.FUSED), Work(plan_kind=PlanKind.FUSED_PDL))
LIBRARY_US, FUSED_US, WINNER_US = (10.0, 20.0, 30.0), (9.0, 18.0, 27.0), (8.0, 16.0, 24.0)

Said = OtherTimes | WorkerError


def baseline(name: str) -> Baseline:
    return Baseline(name=name, program=PythonFunction(pickled=name.encode(), arguments=("x",)))


class Child:
    """A GPU process, with its answer for each program."""

    def __init__(self, **said: Said) -> None:
        self.said, self.asked, self.num_dropped = said, list[tuple[int, int, tuple[str, ...]]](), 0

    def drop(self) -> None:
        self.num_dropped += 1

    def time_together(
        self, problem: Problem, works: tuple[Work, ...], num_rounds: int, others: tuple[PythonFunction, ...] = ()
    ) -> FinalsAnswer:
        self.asked.append((len(works), num_rounds, tuple(one.pickled.decode() for one in others)))
        found = [self.said[one.pickled.decode()] for one in others]
        for one in found:
            if isinstance(one, WorkerError):
                raise one
        times_us = (LIBRARY_US, FUSED_US, WINNER_US)[: len(works)]
        answers = tuple(cast(OtherTimes, one) for one in found)
        return FinalsAnswer(times_us=times_us, reasons=("",) * len(works), num_dropped=0, others=answers)


def timed(child: Child) -> dict[str, BaselineTime]:
    names = tuple(map(baseline, child.said))
    asking, processes = cast(Asking, child), cast(GpuProcesses, child)
    found = time_baselines(asking, processes, _refused, PROBLEM, WORKS, names, 3, winner=2)
    return {one.name: one for one in found}


def _refused(source: CudaSource) -> bytes:
    raise BuildError(f"error in {source.text}")


def test_all_that_run_share_the_rounds_of_library_and_finalists() -> None:
    child = Child(mine=OtherTimes(times_us=(12.0, 25.0, 36.0)), other=OtherTimes(times_us=(5.0, 10.0, 15.0)))
    found = timed(child)
    assert child.asked == [(1, 1, ("mine",)), (1, 1, ("other",)), (3, 3, ("mine", "other"))]
    mine = found["mine"]
    assert (mine.time_us, mine.num_rounds, mine.reason) == (25.0, 3, "")
    assert mine.speedup == pytest.approx(10 / 12)
    assert mine.speedup_ci95 is not None
    assert mine.winner_speedup == pytest.approx(1.5)
    assert found["other"].speedup == pytest.approx(2.0)
    assert child.num_dropped == 1, "no other search is measured beside what a program left in the process"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (OtherTimes(reason="down: relative error 3.00e-01, at most 2e-03 is allowed"), "relative error"),
        (OtherTimes(reason="ZeroDivisionError: division by zero"), "ZeroDivisionError"),
        (ChildLost(FailureKind.HANG, "no answer within 180 s"), "no answer within 180 s"),
        (ChildLost(FailureKind.CRASH, "the GPU process died (signal 11)"), "signal 11"),
    ],
)
def test_one_that_cannot_be_timed_is_said_by_name_and_the_others_are_timed(said: Said, reason: str) -> None:
    child = Child(bad=said, good=OtherTimes(times_us=(20.0, 40.0, 60.0)))
    found = timed(child)
    assert reason in found["bad"].reason
    assert (found["bad"].time_us, found["bad"].speedup, found["bad"].winner_speedup) == (None, None, None)
    assert found["good"].speedup == pytest.approx(0.5)
    assert child.asked[-1] == (3, 3, ("good",))
    assert list(found) == ["bad", "good"]


def test_where_none_can_be_timed_the_finalists_are_not_run_again() -> None:
    child = Child(bad=OtherTimes(reason="wrong"))
    assert timed(child) == {"bad": BaselineTime(name="bad", reason="wrong")}
    assert child.asked == [(1, 1, ("bad",))]


def test_a_source_that_the_compiler_refuses_never_reaches_the_card() -> None:
    child = Child()
    asking, processes = cast(Asking, child), cast(GpuProcesses, child)
    broken = Baseline(name="broken", program=CudaSource(text="nonsense", launches=()))
    (found,) = time_baselines(asking, processes, _refused, PROBLEM, WORKS, [broken], 3, winner=2)
    assert found == BaselineTime(name="broken", reason="it cannot be compiled: error in nonsense")
    assert child.asked == []


def test_a_card_that_is_lost_in_the_shared_rounds_is_the_reason_of_all() -> None:
    child = Child(a=OtherTimes(times_us=(1.0, 1.0, 1.0)), b=OtherTimes(times_us=(1.0, 1.0, 1.0)))
    child.time_together = _lost_at(child.time_together, 3)  # type: ignore[method-assign]
    found = timed(child)
    assert {one.reason for one in found.values()} == {"the card fell off the bus"}
    assert child.num_dropped == 1


def _lost_at(call: Callable[..., FinalsAnswer], number: int) -> Callable[..., FinalsAnswer]:
    calls = iter(range(1, 100))

    def counted(*asked: Any) -> FinalsAnswer:
        if next(calls) == number:
            raise WorkerError("the card fell off the bus")
        return call(*asked)

    return counted
