"""The child's work with one card: prepares a problem once, then checks and times candidate after candidate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import cupy

from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import Failed, FailureKind, Metric, Rejected, Stage
from tuner.core.trial.reports.inspection import EnergyReport, no_counters, no_energy
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.errors import InvalidInput

from ..protocol.cuda_errors import classify
from ..protocol.messages import (
    CountAnswer,
    EnergyAnswer,
    EvaluateAnswer,
    FinalsAnswer,
    OtherTimes,
    OwnProgram,
    PrepareAnswer,
    TraceAnswer,
    Work,
)
from ..protocol.stopwatch import Stopwatch
from ..source.launchable import LaunchRefused
from ..timing.library_choice import Picked
from .launching.launch import Kernel, held_clusters
from .library.runners import Runner, launchable_of, runner_of
from .library.vendor import open_vendor
from .measuring.card import CardView, card_trouble
from .measuring.counters import count_once
from .measuring.energy import measure_energy
from .measuring.measure import measure, measure_together
from .measuring.others import captured_other
from .measuring.problem import ProblemOnCard
from .measuring.trace_run import trace_once
from .own.launch import OwnOnDevice
from .own.runner import OwnRunner
from .tensors.check import Aborted, WrongNumbers, check_after_timing, check_numbers
from .tensors.fitting import DoesNotFit
from .tensors.integrity import Overwritten


class Session:
    """One card, one problem at a time."""

    def __init__(self, tools_cubin: bytes, view: CardView | None = None) -> None:
        """`tools_cubin` is tools.cu compiled for this card; `view` reports its other users."""
        self._tools = cupy.cuda.function.Module()
        self._tools.load(tools_cubin)
        self._vendor = open_vendor()
        self._view = view
        self._prepared: ProblemOnCard | None = None

    def trouble(self) -> str:
        """Why the card cannot be used for measurements; empty if it can, or if nothing is checked."""
        return card_trouble(self._view, self._tools, seed=os.getpid()) if self._view else ""

    def clusters(self) -> tuple[tuple[int, int], ...]:
        """CTAs of a cluster, and how many such clusters the card holds."""
        return held_clusters(self._tools.get_function("tuner_probe").ptr)

    def prepare(self, problem: Problem, picked: Picked | None = None) -> PrepareAnswer | EvaluateAnswer:
        """Makes the problem's inputs, references and baseline, unless they exist; `picked` is the choice of an earlier
        process."""
        try:
            prepared = self._prepare(problem, picked)
        except Exception as error:  # reported with CUDA's own message
            return EvaluateAnswer(outcome=self.failure(error), poisoned=True)
        return PrepareAnswer(picked=prepared.picked, stage_s=prepared.stage_s)

    def failure(self, error: Exception) -> Failed:
        """The answer to a request that ended with `error`."""
        return _failure(Stage.LAUNCH, error, {})

    def evaluate(self, problem: Problem, work: Work, incumbent_speedup: float | None = None) -> EvaluateAnswer:
        """Checks the results, then measures the time. Every fault of the candidate is an outcome."""
        kernels = Kernels()
        answer = self._evaluate(problem, work, kernels, incumbent_speedup)
        if answer.poisoned:
            return answer
        try:  # only now, since a failure keeps its objects alive until its frames are gone
            kernels.unload()
        except Exception as error:
            return EvaluateAnswer(outcome=_failure(Stage.TIME, error, answer.outcome.stage_s), poisoned=True)
        return answer

    def await_busily(self, is_there: Callable[[], bool]) -> None:
        """Keeps the card in the power state of the problem's samples until the next request `is_there`, or as long
        as that is useful."""
        if self._prepared is not None:
            self._prepared.await_busily(is_there)

    def _evaluate(
        self, problem: Problem, work: Work, kernels: Kernels, incumbent_speedup: float | None
    ) -> EvaluateAnswer:
        stage_s: dict[str, float] = {}
        stage = Stage.LAUNCH
        begin = time.perf_counter()
        prepared: ProblemOnCard | None = None
        runner: Runner | None = None

        def finish(next_stage: Stage, name: str) -> None:
            nonlocal stage, begin
            now = time.perf_counter()
            stage_s[name] = now - begin
            stage, begin = next_stage, now

        try:
            prepared = self._prepare(problem)
            finish(Stage.LAUNCH, "prepare")
            runner = load_runner(prepared, work, kernels)
            finish(Stage.CHECK, "load")
            rel_error = check_numbers(prepared.data, prepared.comparer, partial(prepared.run_once, runner), work)
            prepared.check_intact(runner)
            finish(Stage.TIME, "check")
            num_foreign = self._num_foreign()
            measured = measure(prepared, runner, work, incumbent_speedup)
            foreign = _foreign_metric(num_foreign, self._num_foreign())
            finish(Stage.CHECK, "time")
            last = check_after_timing(prepared.data, prepared.comparer, partial(prepared.run_once, runner), work)
            prepared.check_intact(runner)
            finish(Stage.CHECK, "check_after")
        except LaunchRefused as error:
            return EvaluateAnswer(outcome=Rejected(stage=Stage.LAUNCH, reason=str(error), stage_s=stage_s))
        except Exception as error:  # reported with its type, or with CUDA's own message
            stage_s[str(stage)] = time.perf_counter() - begin
            worst = _worst(error, prepared, runner)
            return EvaluateAnswer(outcome=_failure(stage, worst, stage_s), poisoned=not isinstance(worst, _HARMLESS))
        outcome = replace(
            measured, rel_error=max(rel_error, last), metrics=(*measured.metrics, *foreign), stage_s=stage_s
        )
        return EvaluateAnswer(outcome=outcome)

    def _num_foreign(self) -> int | None:
        return None if self._view is None else self._view.num_foreign()

    def finals(
        self,
        problem: Problem,
        works: tuple[Work, ...],
        num_rounds: int,
        others: tuple[TorchCalls | OwnProgram, ...] = (),
    ) -> FinalsAnswer:
        """All works in the same rounds, with other programs if requested; each is checked first, and one that fails
        has a reason instead of times."""
        prepared = self._prepare(problem)
        kernels, watch = Kernels(), Stopwatch()
        runners: list[Runner] = []
        reasons: list[str] = []
        for work in works:
            try:
                runner = load_runner(prepared, work, kernels)
            except LaunchRefused as error:
                reasons.append(str(error))
                continue
            watch.ended("load")
            reasons.append(_fault(prepared, runner, work))
            watch.ended("check")
            if not reasons[-1]:
                runners.append(runner)
        graphs = [captured_other(prepared, other) for other in others]
        watch.ended("others")
        captured = [graph for graph in graphs if not isinstance(graph, str)]
        times, num_dropped = measure_together(prepared, runners, num_rounds, captured)
        watch.ended("time")
        of_others = iter(times[len(runners) :])
        late = [runner.abort_record() or "" for runner in runners]
        for runner in runners:
            prepared.check_intact(runner)
        rows = iter(zip(times, late, strict=False))
        times_us: list[tuple[float, ...] | None] = []
        for i, reason in enumerate(reasons):
            row, record = next(rows) if not reason else ([], "")
            reasons[i] = reason or record
            times_us.append(None if reasons[i] else tuple(row))
        kernels.unload()
        watch.ended("check")
        return FinalsAnswer(
            times_us=tuple(times_us),
            reasons=tuple(reasons),
            num_dropped=num_dropped,
            others=tuple(
                OtherTimes(reason=graph) if isinstance(graph, str) else OtherTimes(times_us=tuple(next(of_others, ())))
                for graph in graphs
            ),
            library=prepared.library.recipe(),
            stage_s=watch.stage_s,
        )

    def energy(self, problem: Problem, work: Work) -> EnergyAnswer:
        """The energy of one run, after a check of its numbers; a candidate's fault is the report's reason."""
        prepared = self._prepare(problem)
        kernels = Kernels()
        try:
            runner = load_runner(prepared, work, kernels)
            report = no_energy(reason) if (reason := _fault(prepared, runner, work)) else _energy(prepared, runner)
        except LaunchRefused as error:
            report = no_energy(str(error))
        kernels.unload()
        return EnergyAnswer(report=report)

    def count(self, problem: Problem, work: Work, metrics: tuple[str, ...] | None) -> CountAnswer:
        """Counters over cold runs; a candidate's fault is the report's reason."""
        prepared = self._prepare(problem)
        kernels = Kernels()
        try:
            answer = CountAnswer(report=count_once(prepared, load_runner(prepared, work, kernels), metrics))
        except LaunchRefused as error:
            answer = CountAnswer(report=no_counters(str(error)))
        except InvalidInput as refusal:
            answer = CountAnswer(report=refusal)
        kernels.unload()
        return answer

    def trace(self, problem: Problem, work: Work) -> TraceAnswer:
        """The stamps of one checked run; a candidate's fault is the answer's reason."""
        prepared = self._prepare(problem)
        kernels = Kernels()
        try:
            answer = trace_once(prepared, load_runner(prepared, work, kernels, traced=True), work)
        except LaunchRefused as error:
            answer = TraceAnswer(stamps=(), reason=str(error))
        kernels.unload()
        return answer

    def _prepare(self, problem: Problem, picked: Picked | None = None) -> ProblemOnCard:
        if self._prepared is not None:
            self._prepared.timer.rest()
        if self._prepared is None or self._prepared.problem != problem:
            self._prepared = None
            cupy.get_default_memory_pool().free_all_blocks()
            self._prepared = ProblemOnCard(problem, self._tools, self._vendor, self._view, picked)
        return self._prepared


#: Failures after which the process can still be used, since its memory is intact.
_HARMLESS = (WrongNumbers, Aborted)


def _worst(error: Exception, prepared: ProblemOnCard | None, runner: Runner | None) -> Exception:
    """`error`; if that alone would leave the process usable, also whether something was overwritten."""
    if prepared is None or runner is None or not isinstance(error, _HARMLESS):
        return error
    try:
        prepared.check_intact(runner)
    except Exception as worse:
        return worse
    return error


def _failure(stage: Stage, error: Exception, stage_s: dict[str, float]) -> Failed:
    """The candidate's failure according to `error`."""
    match error:
        case WrongNumbers():
            kind, reason = FailureKind.WRONG_NUMBERS, str(error)
        case Aborted():
            kind, reason = FailureKind.HANG, str(error)
        case Overwritten():
            kind, reason = FailureKind.OVERWRITE, str(error)
        case cupy.cuda.memory.OutOfMemoryError() | DoesNotFit():
            kind, reason = FailureKind.OUT_OF_MEMORY, str(error)
        case _:
            kind, reason = classify(_cuda_message(error))
    return Failed(stage=stage, kind=kind, reason=reason, stage_s=stage_s)


def _cuda_message(error: Exception) -> str:
    """The runtime's message if a kernel's fault appeared first in another call, such as a library's; else the error
    itself."""
    message = f"{type(error).__name__}: {error}"
    try:
        cupy.cuda.Device().synchronize()
    except Exception as sticky:
        return f"{sticky}; first seen as {message}"
    return message


def _foreign_metric(before: int | None, after: int | None) -> tuple[Metric, ...]:
    """The maximum number of other compute processes on the card during the timing."""
    if before is None or after is None:
        return ()
    return (Metric(tag="foreign_processes", unit="", value=max(before, after)),)


class Kernels:
    """The modules that one request loaded."""

    def __init__(self) -> None:
        self._loaded: list[Kernel | OwnOnDevice] = []

    def load(self, work: Work) -> Kernel:
        """The kernel of the products of `work`."""
        kernel = Kernel(launchable_of(work))
        self._loaded.append(kernel)
        return kernel

    def load_own(self, work: Work) -> tuple[OwnOnDevice, ...]:
        """The kernels of its launch ops."""
        programmatic, limit = work.plan_kind.is_programmatic, work.spin_limit_cycles
        loaded = tuple(OwnOnDevice(one, programmatic=programmatic, spin_limit_cycles=limit) for one in work.own)
        self._loaded += loaded
        return loaded

    def unload(self) -> None:
        """Frees them; they must not be used any more."""
        cupy.cuda.Device().synchronize()
        for kernel in self._loaded:
            kernel.unload()
        self._loaded.clear()


def load_runner(prepared: ProblemOnCard, work: Work, kernels: Kernels, *, traced: bool = False) -> Runner:
    """A runner of the work over a problem, with its kernels loaded; `traced` if they record stamps.

    Raises:
        LaunchRefused: it belongs to another workload, or the card cannot hold it.
    """
    if not work.plan_kind.is_ours:
        return prepared.library
    _check_asked(prepared, work)
    own = kernels.load_own(work)
    if own and work.shared is None:
        return OwnRunner(own, None)
    squares = None if traced else prepared.input_squares  # the input has its squares
    products = runner_of(work, kernels.load(work), traced=traced, input_squares=squares)
    return OwnRunner(own, products, _places(prepared.problem.workload, work)) if own else products


def _places(asked: Workload, work: Work) -> list[int] | None:
    """The positions of the launched tile ops among those that were asked for; None if these are the same."""
    workload, _ = launched(asked, Candidate(plan_kind=work.plan_kind))
    names = [op.name for op in asked.tile_ops]
    return [names.index(op.name) for op in workload.tile_ops] if workload is not asked else None


def _check_asked(prepared: ProblemOnCard, work: Work) -> None:
    """Checks that a candidate belongs to the problem that is on the card.

    Raises:
        LaunchRefused: it belongs to another workload.
    """
    asked, _ = launched(prepared.problem.workload, Candidate(plan_kind=work.plan_kind))
    if not work.ties:
        launchable_of(work)  # raises if there is nothing to launch
    if tied := next((ties.workload for ties in work.ties if ties.workload != asked.digest), ""):
        raise LaunchRefused(f"the candidate is of workload {tied}, the problem is {asked.digest}: {asked.describe()}")


def _fault(prepared: ProblemOnCard, runner: Runner, work: Work) -> str:
    """What is wrong with its results; empty if nothing is.

    Raises:
        Overwritten: it wrote to memory that it must not write.
    """
    reason = ""
    try:
        check_numbers(prepared.data, prepared.comparer, partial(prepared.run_once, runner), work)
    except (WrongNumbers, Aborted) as error:
        reason = str(error)
    prepared.check_intact(runner)
    return reason


def _energy(prepared: ProblemOnCard, runner: Runner) -> EnergyReport:
    """The energy of a runner with correct results.

    Raises:
        Overwritten: it wrote to memory that it must not write.
    """
    found = measure_energy(prepared.timer, prepared.timer.capture(runner))
    prepared.check_intact(runner)
    if record := runner.abort_record():
        return no_energy(record)
    if isinstance(found, str):
        return no_energy(found)
    return EnergyReport(run_mj=found.run_mj, power_w=found.power_w, window_s=found.window_s)
