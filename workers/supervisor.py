"""One card's evaluator: proves and builds here, measures in a disposable child. Never touches CUDA itself.

A hung kernel cannot be interrupted and a faulting one poisons its process, so the child is killed and replaced: one
request in flight, a deadline, SIGKILL, respawn, a known-good probe before the next candidate. The child asks to be
killed when the *thread* that started it ends (PR_SET_PDEATHSIG), so use a supervisor from threads that live as long.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner import __version__
from tuner.core.evaluator import ArtifactFiles, Environment, FinalsTimes, Problem
from tuner.core.gpu import Target, gpu_from_live
from tuner.core.inspection import Trace
from tuner.core.outcome import Candidate, Failed, FailureKind, Measured, Metric, Outcome, Rejected, Stage
from tuner.core.tracing import no_trace, trace_from_stamps
from tuner.errors import BuildError, IllegalSchedule, PlanError, WorkerError
from workers import messages
from workers.build import Builder, BuildTimeout, Built
from workers.candidates import Prepared, prepare
from workers.gpu import child
from workers.render import device_text, kernel_version


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds after which the child is killed."""

    #: From spawn to its first word: imports, context, probe.
    start_s: float = 60.0
    #: Inputs and references of a new problem, on top of the request's own.
    prepare_s: float = 90.0
    #: One candidate.
    evaluate_s: float = 20.0
    #: All finalists.
    finals_s: float = 90.0


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that the driver lists."""

    #: ``GPU-…``.
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    driver: str


class ChildLost(WorkerError):
    """The child died, or was killed at its deadline."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind

    def __reduce__(self) -> tuple[type[ChildLost], tuple[FailureKind, str]]:
        return type(self), (self.kind, str(self))


def usable_gpus() -> list[Card]:
    """The cards that can be tuned for: sm_80 or later, with CuPy and NVRTC installed.

    Raises:
        WorkerError: none is usable; the message says why.
    """
    missing = [name for name in ("pynvml", "cupy", "cuda.bindings") if not _is_installed(name)]
    if missing:
        raise WorkerError(f"{', '.join(missing)} not installed: pip install 'tuner[worker-cuda13]'")
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        cards = [
            Card(
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                name=str(pynvml.nvmlDeviceGetName(handle)),
                compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                driver=driver,
            )
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        raise WorkerError(f"no NVIDIA driver answers ({error})") from error
    usable = [card for card in cards if card.compute_capability >= (8, 0)]
    if not usable:
        names = ", ".join(card.name for card in cards) or "none"
        raise WorkerError(f"no GPU of compute capability 8.0 or later is here ({names})")
    return usable


def _is_installed(name: str) -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False


class _Child:
    """A running child process and its pipe."""

    def __init__(self, card: Card, tools_cubin: bytes, deadline_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=child.main,
            args=(theirs, card.uuid, tools_cubin, os.getpid()),
            name=f"tuner {card.uuid}",
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self.problem: Problem | None = None
        first = self._receive(deadline_s)
        if isinstance(first, messages.Refusal):
            self.kill()
            raise WorkerError(first.reason)
        assert isinstance(first, messages.Hello)
        self.hello = first

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def ask(self, request: messages.Request, deadline_s: float) -> messages.Answer:
        """The child's answer.

        Raises:
            ChildLost: it died, or the deadline passed and it was killed.
        """
        try:
            self._pipe.send(request)
        except OSError as error:
            self.kill()
            raise ChildLost(FailureKind.CRASH, f"the GPU process is gone: {error}") from error
        return self._receive(deadline_s)

    def _receive(self, deadline_s: float) -> messages.Answer:
        pipe: Connection = self._pipe
        try:
            if not pipe.poll(deadline_s):
                self.kill()
                raise ChildLost(FailureKind.HANG, f"no answer within {deadline_s:g} s: the GPU process was killed")
            answer: messages.Answer = pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            self._process.join(5)
            code = self._process.exitcode
            self.kill()
            raise ChildLost(FailureKind.CRASH, f"the GPU process died (exit code {code})") from error
        except ChildLost:
            raise
        except Exception as error:  # what came through the pipe was no message
            self.kill()
            raise ChildLost(FailureKind.CRASH, f"the GPU process answered garbage: {error}") from error
        if not isinstance(answer, messages.Answer):
            self.kill()
            raise ChildLost(FailureKind.CRASH, f"the GPU process answered garbage: {type(answer).__name__}")
        return answer

    def kill(self) -> None:
        """SIGKILL, and its end waited for."""
        self._process.kill()
        self._process.join(10)
        self._pipe.close()


class GpuSupervisor:
    """The `Evaluator` of one real card."""

    def __init__(self, card: Card, build_cache: Path, deadlines: Deadlines | None = None) -> None:
        """Starts the child, which probes the card.

        Raises:
            WorkerError: the card, the driver or an installed package does not work; the message says which.
        """
        self._card = card
        self._deadlines = deadlines or Deadlines()
        self._builder = Builder(build_cache)
        major, minor = card.compute_capability
        self._tools_cubin = self._builder.build(device_text("tools.cu"), f"sm_{major}{minor}").cubin
        self._child: _Child | None = None
        hello = self._ready_child().hello
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

    @property
    def target(self) -> Target:
        """The card as the catalogue knows it, with its own facts."""
        return self._target

    @property
    def child_pid(self) -> int | None:
        """Process id of the child that holds the card now."""
        return self._child.pid if self._child else None

    def environment(self) -> Environment:
        """Card, driver, compiler and versions."""
        return self._environment

    def evaluate(self, problem: Problem, candidate: Candidate) -> Outcome:
        """Prove, build, check, time; every fault of the candidate is an outcome.

        Raises:
            WorkerError: the card itself does not work any more.
        """
        stage_s: dict[str, float] = {}
        try:
            prepared = prepare(problem.workload, self._target.gpu, candidate, self._builder, stage_s)
        except (IllegalSchedule, PlanError) as error:
            return Rejected(stage=Stage.VERIFY, reason=str(error), stage_s=stage_s)
        except BuildTimeout as error:
            return Failed(stage=Stage.BUILD, kind=FailureKind.COMPILE_TIMEOUT, reason=str(error), stage_s=stage_s)
        except BuildError as error:
            return Failed(stage=Stage.BUILD, kind=FailureKind.COMPILE_ERROR, reason=str(error), stage_s=stage_s)
        if prepared.refusal:
            return Rejected(stage=Stage.BUILD, reason=prepared.refusal, stage_s=stage_s)
        begin = time.perf_counter()
        outcome = self._measure(problem, prepared)
        stage_s = {**stage_s, **outcome.stage_s}
        stage_s["overhead"] = time.perf_counter() - begin - sum(outcome.stage_s.values())
        if isinstance(outcome, Measured):
            outcome = replace(outcome, metrics=(*outcome.metrics, *_build_metrics(prepared.built)))
        return replace(outcome, stage_s=stage_s)

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...]) -> FinalsTimes:
        """The same rounds in the warm child, and again in a fresh one.

        Where a finalist takes the child along, each is tried alone, and the finals go on without the guilty.

        Raises:
            WorkerError: the card itself does not work any more.
        """
        works = tuple(prepare(problem.workload, self._target.gpu, c, self._builder, {}).work for c in candidates)
        faults = [""] * len(works)
        try:
            answer = self._finals_twice(problem, works)
        except ChildLost:
            faults = [self._fault_alone(problem, work) for work in works]
            if not any(faults):
                raise
            innocent = tuple(work for work, fault in zip(works, faults, strict=True) if not fault)
            answer = self._finals_twice(problem, innocent)
        rows = iter(zip(answer.times_us, answer.reasons, strict=True))
        told = [(None, fault) if fault else next(rows) for fault in faults]
        return FinalsTimes(
            times_us=tuple(times for times, _ in told),
            reasons=tuple(reason for _, reason in told),
            process_of_round=(0,) * _FINAL_ROUNDS + (1,) * _FINAL_ROUNDS,
        )

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> ArtifactFiles:
        """Source, cubin, plans and manifest of a candidate of ours."""
        from workers.artifact import assemble

        prepared = prepare(problem.workload, self._target.gpu, candidate, self._builder, {})
        if prepared.built is None:
            raise ValueError(f"a {candidate.plan_kind} candidate has no kernel to fetch")
        return assemble(
            problem, candidate, prepared.plans, prepared.source, prepared.built.cubin, self._environment, extra
        )

    def trace(self, problem: Problem, candidate: Candidate) -> Trace:
        """Runs a traced build once; whatever stands in the way is the trace's reason.

        Raises:
            WorkerError: the card itself does not work any more.
        """
        if candidate.schedule is None:
            return no_trace("the library's kernels carry no stamps", simulated=False)
        try:
            prepared = prepare(problem.workload, self._target.gpu, candidate, self._builder, {}, traced=True)
            request = messages.TraceRequest(problem=problem, work=prepared.work)
            answer = self._ask(problem, request, self._deadlines.evaluate_s)
            if not isinstance(answer, messages.TraceAnswer):
                raise self._lost(answer, "the trace")
        except (IllegalSchedule, PlanError, BuildError, ChildLost) as error:
            return no_trace(str(error), simulated=False)
        return trace_from_stamps(prepared.plans, answer.stamps, answer.reason)

    def close(self) -> None:
        """Kills the child and the compilers."""
        self._drop_child()
        self._builder.close()

    def _measure(self, problem: Problem, prepared: Prepared) -> Outcome:
        begin = time.perf_counter()
        try:
            answer = self._ask(
                problem, messages.EvaluateRequest(problem=problem, work=prepared.work), self._deadlines.evaluate_s
            )
        except ChildLost as lost:
            spent = {"lost": time.perf_counter() - begin}
            return Failed(stage=Stage.LAUNCH, kind=lost.kind, reason=str(lost), stage_s=spent)
        if isinstance(answer, messages.EvaluateAnswer):
            return answer.outcome
        self._drop_child()
        return Failed(stage=Stage.LAUNCH, kind=FailureKind.CRASH, reason="the GPU process answered out of turn")

    def _finals_twice(self, problem: Problem, works: tuple[messages.Work, ...]) -> messages.FinalsAnswer:
        """Warm, then fresh; the rounds of both, one after the other."""
        warm = self._finals_once(problem, works, _FINAL_ROUNDS)
        self._drop_child()
        fresh = self._finals_once(problem, works, _FINAL_ROUNDS)
        times = tuple(
            None if a is None or b is None else a + b for a, b in zip(warm.times_us, fresh.times_us, strict=True)
        )
        reasons = tuple(a or b for a, b in zip(warm.reasons, fresh.reasons, strict=True))
        return messages.FinalsAnswer(times_us=times, reasons=reasons)

    def _fault_alone(self, problem: Problem, work: messages.Work) -> str:
        """Why a finalist cannot be timed even alone; empty where it can."""
        try:
            return self._finals_once(problem, (work,), 1).reasons[0]
        except ChildLost as lost:
            return str(lost)

    def _finals_once(
        self, problem: Problem, works: tuple[messages.Work, ...], num_rounds: int
    ) -> messages.FinalsAnswer:
        request = messages.FinalsRequest(problem=problem, works=works, num_rounds=num_rounds)
        answer = self._ask(problem, request, self._deadlines.finals_s)
        if isinstance(answer, messages.FinalsAnswer):
            return answer
        raise self._lost(answer, "the finals")

    def _lost(self, answer: messages.Answer, what: str) -> ChildLost:
        """Ends a child that answered something else; the error to raise."""
        self._drop_child()
        told = answer.outcome if isinstance(answer, messages.EvaluateAnswer) else None
        reason = told.reason if isinstance(told, Failed) else "an answer out of turn"
        return ChildLost(FailureKind.CRASH, f"{what} failed: {reason}")

    def _ask(self, problem: Problem, request: messages.Request, own_s: float) -> messages.Answer:
        """The child's answer; a child that is lost or poisoned is gone afterwards.

        Raises:
            ChildLost: it died, or the deadline passed and it was killed.
        """
        gpu_child = self._ready_child()
        try:
            answer = gpu_child.ask(request, self._deadline(gpu_child, problem, own_s))
        except ChildLost:
            self._child = None
            raise
        if isinstance(answer, messages.EvaluateAnswer) and answer.poisoned:
            self._drop_child()
        return answer

    def _deadline(self, gpu_child: _Child, problem: Problem, own_s: float) -> float:
        """A problem that the child does not hold yet takes longer."""
        new = gpu_child.problem != problem
        gpu_child.problem = problem
        return own_s + (self._deadlines.prepare_s if new else 0.0)

    def _ready_child(self) -> _Child:
        """The child; a new one probes the card before its first word.

        Raises:
            WorkerError: it does not come up, so the card is quarantined until the next try.
        """
        if self._child is None:
            self._child = _Child(self._card, self._tools_cubin, self._deadlines.start_s)
        return self._child

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


#: Rounds of the finals, in each of the two processes.
_FINAL_ROUNDS = 20


def _build_metrics(built: Built | None) -> tuple[Metric, ...]:
    if built is None:
        return ()
    return (
        Metric(tag="registers_per_thread", unit="", value=built.resources.registers_per_thread),
        Metric(tag="cubin_size", unit="bytes", value=len(built.cubin)),
        Metric(tag="compile_time", unit="s", value=built.compile_s),
    )
