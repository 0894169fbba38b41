"""The evaluator of one card: proves and builds here, measures in a disposable child process. It never uses CUDA itself.

It sends one request at a time, with a deadline and SIGKILL; after a kill, another child probes the card before the next
candidate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tuner import __version__
from tuner.core.insight.derived_counters import with_derived
from tuner.core.insight.traces.tracing import no_trace, trace_from_stamps
from tuner.core.problem.gpu import Target, gpu_from_live
from tuner.core.schedule.candidate import LIBRARY, Candidate, launched
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes, Preparation, Prepared, Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Metric, Outcome, Stage
from tuner.core.trial.reports.baselines import Baseline, BaselineTime, CudaSource
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace, no_counters, no_energy
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.errors import BuildError, IllegalSchedule, InvalidInput, PlanError, WorkerError

from ..builder.nvrtc import Builder
from ..builder.prepare import PreparedKernel, prepare, try_prepare
from ..protocol import messages
from ..protocol.stopwatch import Stopwatch
from ..source.render import kernel_version
from ..source.tools import tools_source
from .asking import Asking
from .cards import Card, compute_pids
from .finals import hold_finals
from .gpu_process import ChildLost, GpuProcesses
from .lending import Lending, num_others
from .own_baselines import time_baselines
from .torch_beside import Rounds, beside_compiled, beside_eager
from .variants_ahead import build_variants_ahead


class GpuSupervisor:
    """The `Evaluator` of one real card."""

    def __init__(
        self,
        card: Card,
        build_cache: Path,
        limits: Limits | None = None,
        builder: Builder | None = None,
        *,
        when_idle: bool = False,
        torch_baseline: bool = False,
    ) -> None:
        """Starts the child, which probes the card; `limits` default to the usual ones, and `builder`, which cards of
        one machine share, to one that compiles one source at a time. With `when_idle`, it measures only while nobody
        else uses the card. With `torch_baseline`, PyTorch's eager calls are timed after each finals, unless these
        request torch.compile.

        Raises:
            WorkerError: the card, the driver or an installed package does not work; the message says which.
        """
        self._card = card
        self._limits = limits or Limits()
        self._has_torch = torch_baseline
        self._builder = builder.share() if builder else Builder(build_cache, limits=self._limits)
        major, minor = card.compute_capability
        arch = f"sm_{major}{minor}"
        tools_cubin = self._builder.build(tools_source(arch), arch).cubin
        self._lending = Lending(self._num_others, lambda: self._processes.leave()) if when_idle else None
        self._processes = GpuProcesses(card.uuid, tools_cubin, self._limits, away=self._away)
        self._asking = Asking(self._processes, self._limits)
        try:
            hello = self._processes.hello()
        except WorkerError:
            self.close()
            raise
        self._target = Target(gpu=gpu_from_live(hello.facts))
        self._environment = Environment(
            gpu_name=hello.facts.name,
            simulated=False,
            driver=hello.driver,
            cuda=self._builder.compiler_version,
            clocks_mhz=hello.clocks_mhz,
            tuner_version=__version__,
            kernel_version=kernel_version(),
        )
        if self._lending is not None:
            self._lending.start()

    def _away(self) -> str:
        """Why the card is not available now; empty if it is."""
        return self._lending.away if self._lending is not None else ""

    def _num_others(self) -> int:
        """Other processes on the card; 0 if the driver does not report them."""
        own = {os.getpid(), *([self._processes.pid] if self._processes.pid else [])}
        with suppress(WorkerError):
            return num_others(compute_pids(self._card.uuid), own, is_there=self._processes.pid is not None)
        return 0

    @property
    def target(self) -> Target:
        """The card's catalogue entry, with its own facts."""
        return self._target

    @property
    def uuid(self) -> str:
        """The UUID of the card."""
        return self._card.uuid

    @property
    def child_pid(self) -> int | None:
        """Process id of the child that holds the card now."""
        return self._processes.pid

    def environment(self) -> Environment:
        """Card, driver, compiler and versions."""
        return self._environment

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        """Proves, renders and builds; every fault of the candidate is an outcome. May be called from any thread."""
        return try_prepare(
            problem.workload,
            self._target.gpu,
            candidate,
            self._builder,
            spin_limit_cycles=self._limits.spin_limit_cycles,
        )

    def measure(
        self,
        problem: Problem,
        prepared: Prepared,
        incumbent_speedup: float | None = None,
    ) -> Outcome:
        """Checks and times a build; every fault of the candidate is an outcome.

        Raises:
            Quarantined: the card cannot be used for measurements now.
            WorkerError: the child was lost before it started on the candidate.
            TypeError: it was prepared by a different kind of evaluator.
        """
        if not isinstance(prepared, PreparedKernel):
            raise TypeError(f"a card measures kernels, not a {type(prepared).__name__}")
        outcome = self._measure(problem, prepared.work, incumbent_speedup)
        if isinstance(outcome, Measured):
            outcome = replace(outcome, metrics=(*outcome.metrics, *_build_metrics(prepared)))
        return replace(outcome, stage_s={**prepared.stage_s, **outcome.stage_s})

    def finals(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        *,
        num_rounds: int,
        torch_compile: bool = False,
    ) -> FinalsTimes:
        """The same rounds in the warm child, and again in a fresh one; with `torch_compile`, once more there, together
        with torch.compile. A fault of PyTorch is reported as a reason.

        Raises:
            WorkerError: the card itself does not work any more.
        """
        works = tuple(self._prepare(problem, candidate).work for candidate in candidates)
        foresee = partial(build_variants_ahead, self._builder)
        times = hold_finals(self._asking, self._processes, problem, works, num_rounds, foresee)
        if torch_compile:
            return self._beside_torch(beside_compiled, times, problem, works, num_rounds, TorchCalls.COMPILED)
        if self._has_torch:
            library = (messages.Work(plan_kind=LIBRARY.plan_kind),)
            return self._beside_torch(beside_eager, times, problem, library, num_rounds, TorchCalls.EAGER)
        return times

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        *,
        num_rounds: int,
        winner: int,
    ) -> tuple[BaselineTime, ...]:
        """Rounds in one process, which ends afterwards; a program's fault is reported as a reason.

        Raises:
            WorkerError: the card itself does not work any more.
        """
        works = tuple(self._prepare(problem, candidate).work for candidate in candidates)

        def compiled(source: CudaSource) -> bytes:
            return self._builder.build_own(source.text, self._target.gpu.arch, source.options)

        return time_baselines(self._asking, self._processes, compiled, problem, works, baselines, num_rounds, winner)

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> ArtifactFiles:
        """Source, cubin, plans and manifest of our candidate."""
        from ..builder.artifact import assemble
        from ..builder.own_artifact import own_kernels
        from ..builder.variants import build_variants

        prepared = self._prepare(problem, candidate)
        work, programmatic = prepared.work, candidate.plan_kind.is_programmatic
        if not candidate.plan_kind.is_ours:
            raise ValueError(f"a {candidate.plan_kind} candidate has no kernel to fetch")
        return assemble(
            problem,
            candidate,
            work.plans,
            prepared.source,
            work.shared,
            self._environment,
            extra,
            work.spin_limit_cycles,
            build_variants(work.plans, self._builder, programmatic=programmatic) if work.plans else (),
            own_kernels(
                problem.workload,
                self._target.gpu,
                candidate,
                work.own,
                lambda source: self._builder.build(source, self._target.gpu.arch),
                spin_limit_cycles=work.spin_limit_cycles,
            ),
        )

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        """Replays the candidate under the profiler, in a process that ends afterwards; an obstacle is the report's
        reason.

        Raises:
            InvalidInput: the GPU has no such metric; the message names similar ones.
            WorkerError: the card itself does not work any more.
        """
        workload, gpu = problem.workload, self._target.gpu
        try:
            prepared = self._prepare(problem, candidate)
            if prepared.refusal:
                return no_counters(prepared.refusal)
            request = messages.CountRequest(problem=problem, work=prepared.work, metrics=metrics)
            deadline_s = self._limits.count_deadline_s
            answer = self._asking.ask(problem, request, messages.CountAnswer, deadline_s, "the counting")
        except (IllegalSchedule, PlanError, BuildError, ChildLost) as error:
            return no_counters(str(error))
        self._processes.replace(problem)  # the profiler stays loaded in its process, so all later times there are wrong
        if isinstance(answer.report, InvalidInput):
            raise answer.report
        return answer.report if metrics else with_derived(answer.report, workload, gpu)

    def energy(self, problem: Problem, candidate: Candidate) -> EnergyReport:
        """The energy of a run under continuous load; an obstacle is the report's reason.

        Raises:
            WorkerError: the card itself does not work any more.
        """
        try:
            prepared = self._prepare(problem, candidate)
            return no_energy(prepared.refusal) if prepared.refusal else self._asking.energy(problem, prepared.work)
        except (IllegalSchedule, PlanError, BuildError, ChildLost) as error:
            return no_energy(str(error))

    def trace(self, problem: Problem, candidate: Candidate) -> Trace:
        """Runs a traced build once; an obstacle is the trace's reason.

        Raises:
            WorkerError: the card itself does not work any more.
        """
        if candidate.schedule is None:
            return no_trace("the library's kernels have no stamps", simulated=False)
        try:
            prepared = self._prepare(problem, candidate, traced=True)
            request = messages.TraceRequest(problem=problem, work=prepared.work)
            deadline_s = self._limits.evaluate_deadline_s
            answer = self._asking.ask(problem, request, messages.TraceAnswer, deadline_s, "the trace")
        except (IllegalSchedule, PlanError, BuildError, ChildLost) as error:
            return no_trace(str(error), simulated=False)
        own = tuple(one.plan for one in prepared.work.own)
        workload, _ = launched(problem.workload, candidate)
        return trace_from_stamps(workload, own, prepared.plans, answer.stamps, answer.reason)

    def close(self) -> None:
        """Kills the child and the compilers."""
        if self._lending is not None:
            self._lending.close()
        self._processes.close()
        self._builder.close()

    def _measure(self, problem: Problem, work: messages.Work, incumbent_speedup: float | None) -> Outcome:
        """The child's outcome for the candidate, or the child's end, if the candidate caused it."""
        begin = time.perf_counter()
        answer: messages.Answer | None = self._processes.ready(problem)
        stage_s = {"start": time.perf_counter() - begin}
        parts = {f"start.{part}": seconds for part, seconds in self._processes.take_start_s().items()}
        request = messages.EvaluateRequest(problem=problem, work=work, incumbent_speedup=incumbent_speedup)
        try:
            answer = answer or self._processes.ask(request, self._limits.evaluate_deadline_s)
        except ChildLost as lost:
            stage_s["lost"] = time.perf_counter() - begin - stage_s["start"]
            return Failed(stage=Stage.LAUNCH, kind=lost.kind, reason=str(lost), stage_s=stage_s | parts)
        if not isinstance(answer, messages.EvaluateAnswer):
            self._processes.replace(problem)
            reason = "the GPU process answered out of order"
            return Failed(stage=Stage.LAUNCH, kind=FailureKind.CRASH, reason=reason, stage_s=stage_s | parts)
        stage_s |= answer.outcome.stage_s
        stage_s["overhead"] = time.perf_counter() - begin - sum(stage_s.values())
        return replace(answer.outcome, stage_s=stage_s | parts)

    def probe(self) -> None:
        """Probes whether the card can be used for measurements; a running child has already done so when it started.

        Raises:
            Quarantined: it cannot be used.
        """
        self._processes.hello()

    def _prepare(self, problem: Problem, candidate: Candidate, *, traced: bool = False) -> PreparedKernel:
        """The result of `prepare` for a candidate on this card, with this supervisor's limit of a wait.

        Raises:
            IllegalSchedule, PlanError, BuildError: as `prepare`.
        """
        return prepare(
            problem.workload,
            self._target.gpu,
            candidate,
            self._builder,
            {},
            spin_limit_cycles=self._limits.spin_limit_cycles,
            traced=traced,
        )

    def _beside_torch(
        self,
        beside: Callable[[FinalsTimes, Rounds], FinalsTimes],
        times: FinalsTimes,
        problem: Problem,
        works: tuple[messages.Work, ...],
        num_rounds: int,
        torch: TorchCalls,
    ) -> FinalsTimes:
        """The finals with PyTorch's time, which the current child measures. The child ends afterwards, since PyTorch
        would keep its memory."""
        watch = Stopwatch()
        found = beside(times, lambda: self.time_together(problem, works, num_rounds, (torch,)))
        self._processes.drop()
        watch.ended("torch")
        return replace(found, stage_s=found.stage_s | watch.stage_s)

    def time_together(
        self,
        problem: Problem,
        works: tuple[messages.Work, ...],
        num_rounds: int,
        others: tuple[TorchCalls | messages.OwnProgram, ...] = (),
    ) -> messages.FinalsAnswer:
        """Checks each of the works, then times all in the same rounds, with other programs if requested, in the current
        child.

        Raises:
            ChildLost: a work ended the child, or the deadline passed.
            WorkerError: the card itself does not work any more.
        """
        return self._asking.time_together(problem, works, num_rounds, others)


def _build_metrics(prepared: PreparedKernel) -> tuple[Metric, ...]:
    """The maximum of all kernels' registers, and the sums of their other resources; empty for the library."""
    if not (builds := [kernel.built for kernel in prepared.kernels]):
        return ()
    registers = max(built.resources.registers_per_thread for built in builds)
    return (
        Metric(tag="registers_per_thread", unit="", value=registers),
        Metric(tag="cubin_size", unit="bytes", value=sum(len(built.cubin) for built in builds)),
        Metric(tag="compile_time", unit="s", value=sum(built.compile_s for built in builds)),
    )
