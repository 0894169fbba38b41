"""The finals on one card: the same rounds in the warm process, and again in a fresh one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tuner.core.trial.evaluator import FinalsTimes, Problem

from ..protocol import messages
from ..protocol.stopwatch import Stopwatch
from .asking import Asking
from .gpu_process import ChildLost, GpuProcesses

#: Gets the works and their times in the warm process, while the fresh one starts.
Foresight = Callable[[tuple[messages.Work, ...], messages.FinalsAnswer], None]


def hold_finals(
    asking: Asking,
    processes: GpuProcesses,
    problem: Problem,
    works: tuple[messages.Work, ...],
    num_rounds: int,
    foresee: Foresight = lambda works, answer: None,
) -> FinalsTimes:
    """If a finalist ends the process, each is tried alone, and the finals continue without the faulty ones.

    Raises:
        WorkerError: the card itself does not work any more.
    """
    faults = [""] * len(works)
    try:
        answer = _finals_twice(asking, processes, problem, works, num_rounds, foresee)
    except ChildLost:
        faults = [_fault_alone(asking, problem, work) for work in works]
        if not any(faults):
            raise
        innocent = tuple(work for work, fault in zip(works, faults, strict=True) if not fault)
        answer = _finals_twice(asking, processes, problem, innocent, num_rounds, foresee)
    rows = iter(zip(answer.times_us, answer.reasons, strict=True))
    measured = [(None, fault) if fault else next(rows) for fault in faults]
    return replace(
        answer,
        times_us=tuple(times for times, _ in measured),
        reasons=tuple(reason for _, reason in measured),
    )


def _finals_twice(
    asking: Asking,
    processes: GpuProcesses,
    problem: Problem,
    works: tuple[messages.Work, ...],
    num_rounds: int,
    foresee: Foresight,
) -> FinalsTimes:
    """The rounds of both processes, the warm one first."""
    watch = Stopwatch()
    warm = asking.time_together(problem, works, num_rounds)
    watch.ended("warm")
    processes.replace(problem)
    foresee(works, warm)
    watch.ended("replace")
    fresh = asking.time_together(problem, works, num_rounds)
    watch.ended("fresh")
    parts = {"warm": warm.stage_s, "fresh": processes.take_start_s() | fresh.stage_s}
    times = tuple(None if a is None or b is None else a + b for a, b in zip(warm.times_us, fresh.times_us, strict=True))
    num_kept = [max((len(row) for row in once.times_us if row), default=0) for once in (warm, fresh)]
    return FinalsTimes(
        times_us=times,
        reasons=tuple(a or b for a, b in zip(warm.reasons, fresh.reasons, strict=True)),
        process_of_round=(0,) * num_kept[0] + (1,) * num_kept[1],
        num_dropped=warm.num_dropped + fresh.num_dropped,
        library=warm.library,
        stage_s=watch.stage_s | {f"{whole}.{part}": s for whole, of in parts.items() for part, s in of.items()},
    )


def _fault_alone(asking: Asking, problem: Problem, work: messages.Work) -> str:
    """Why a finalist cannot be timed even alone; empty if it can."""
    try:
        return asking.time_together(problem, (work,), 1).reasons[0]
    except ChildLost as lost:
        return str(lost)
