"""A user's own programs next to the finalists of a job: each is tried alone first, so that a faulty one is
identified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tuner.core.trial.evaluator import Problem
from tuner.core.trial.reports.baselines import Baseline, BaselineTime, CudaSource
from tuner.core.trial.stats import compare, median, paired_ratios
from tuner.errors import BuildError, WorkerError

from ..protocol import messages
from .asking import Asking
from .gpu_process import GpuProcesses

_NOT_TIMED = "it was not timed"


def time_baselines(
    asking: Asking,
    processes: GpuProcesses,
    compiled: Callable[[CudaSource], bytes],
    problem: Problem,
    works: tuple[messages.Work, ...],
    baselines: Sequence[Baseline],
    num_rounds: int,
    winner: int,
) -> tuple[BaselineTime, ...]:
    """The time of each program, in rounds that it shares with `works` and the other programs that run. The first work
    is the library, and `winner` the index of the winner. `compiled` returns the cubin of a source. The process at the
    card ends afterwards, since PyTorch would keep its memory, and a program may leave other state behind.

    A program's fault is not raised, but reported as the reason for the missing time.
    """
    programs, reasons = _compiled_ones(compiled, baselines)
    for name, program in programs.items():
        reasons[name] = _fault_alone(asking, processes, problem, works[0], program)
    able = {name: program for name, program in programs.items() if not reasons[name]}
    found = _timed_together(asking, problem, works, able, num_rounds, winner) if able else {}
    processes.drop()
    return tuple(found.get(one.name) or BaselineTime(name=one.name, reason=reasons[one.name]) for one in baselines)


def _compiled_ones(
    compiled: Callable[[CudaSource], bytes], baselines: Sequence[Baseline]
) -> tuple[dict[str, messages.OwnProgram], dict[str, str]]:
    """The programs in the form for a card, and why the others cannot be compiled."""
    programs, reasons = dict[str, messages.OwnProgram](), dict[str, str]()
    for one in baselines:
        if not isinstance(one.program, CudaSource):
            programs[one.name] = one.program
            continue
        try:
            cubin = compiled(one.program)
        except BuildError as error:
            reasons[one.name] = f"it cannot be compiled: {error}"
        else:
            programs[one.name] = messages.OwnKernels(cubin=cubin, launches=one.program.launches)
    return programs, reasons


def _fault_alone(
    asking: Asking, processes: GpuProcesses, problem: Problem, library: messages.Work, program: messages.OwnProgram
) -> str:
    """Why a program cannot be timed next to the library; empty if it can."""
    try:
        (times,) = asking.time_together(problem, (library,), 1, (program,)).others
    except WorkerError as error:  # including a lost process
        return str(error)
    if times.reason:
        processes.drop()  # it may have left a failed capture, or worse
    return times.reason


def _timed_together(
    asking: Asking,
    problem: Problem,
    works: tuple[messages.Work, ...],
    programs: Mapping[str, messages.OwnProgram],
    num_rounds: int,
    winner: int,
) -> dict[str, BaselineTime]:
    try:
        answer = asking.time_together(problem, works, num_rounds, tuple(programs.values()))
    except WorkerError as error:
        return {name: BaselineTime(name=name, reason=str(error)) for name in programs}
    others = zip(programs, answer.others, strict=True)
    return {name: _time_of(name, times, answer, winner) for name, times in others}


def _time_of(name: str, times: messages.OtherTimes, answer: messages.FinalsAnswer, winner: int) -> BaselineTime:
    library_us, winner_us = answer.times_us[0], answer.times_us[winner]
    if not times.times_us or library_us is None:
        return BaselineTime(name=name, reason=times.reason or answer.reasons[0] or _NOT_TIMED)
    against = compare(times.times_us, library_us, (0,) * len(library_us))
    return BaselineTime(
        name=name,
        time_us=median(times.times_us),
        speedup=against.speedup,
        speedup_ci95=against.ci95,
        winner_speedup=None if winner_us is None else median(paired_ratios(times.times_us, winner_us)),
        num_rounds=len(times.times_us),
    )
