"""Prepares a candidate for the card: proves its plans, renders and builds the source, and proves again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Prepared
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Rejected, Stage
from tuner.errors import BuildError, IllegalSchedule, PlanError

from ..protocol.messages import Work
from ..source.launchable import LaunchRefused
from .kernels import BuiltKernel, Kernel, kernels_of
from .nvrtc import Builder, BuildTimeout, Built
from .variants import refusal_of


@dataclass(frozen=True, kw_only=True)
class PreparedKernel(Prepared):
    """A prepared candidate, for the card and for an artifact."""

    work: Work
    #: For each launchable of the work, its source and build; empty for the library.
    kernels: tuple[BuiltKernel, ...] = ()
    #: Why the build may not be launched; empty if it may.
    refusal: str = ""

    @property
    def plans(self) -> tuple[VerifiedPlan, ...]:
        """Plans of the launches of tile ops, with the resources that the compiler reported; empty for the library."""
        return self.work.plans

    @property
    def shared(self) -> BuiltKernel | None:
        """The kernel of tile ops; None for the library, and if there is no tile op."""
        pairs = zip(self.work.launchables, self.kernels, strict=True)
        return next((kernel for one, kernel in pairs if one is self.work.shared), None)

    @property
    def source(self) -> str:
        """Source of that kernel; empty if there is none."""
        return self.shared.source if self.shared else ""


@dataclass(frozen=True, kw_only=True)
class Proven:
    """Our candidate with proven plans, and the sources of its kernels."""

    workload: Workload
    gpu: Gpu
    candidate: Candidate
    kernels: tuple[Kernel, ...]
    #: The source of each kernel.
    sources: tuple[str, ...]
    #: Whether the builds stamp their tasks.
    traced: bool
    #: Seconds by stage.
    stage_s: dict[str, float]


def prepare(
    workload: Workload,
    gpu: Gpu,
    candidate: Candidate,
    builder: Builder,
    stage_s: dict[str, float],
    *,
    spin_limit_cycles: int = Limits.spin_limit_cycles,
    traced: bool = False,
) -> PreparedKernel:
    """Proves, renders, builds, and proves again; `stage_s` receives the seconds of each stage. A wait may last
    `spin_limit_cycles`.

    A `traced` build stamps its tasks. It needs a few more registers, so it may spill although the timed one does not.

    Raises:
        IllegalSchedule: the schedule is not in the legal space.
        PlanError: a plan is refused, before the build or with the reported resources.
        LaunchRefused: the build does not belong to the plans' kernel.
        BuildError: the source does not compile, or not in time.
    """
    if candidate.schedule is None:
        return _library(candidate)
    proven = _prove(workload, gpu, candidate, stage_s, traced=traced)
    return _tie(proven, _build(proven, builder, stage_s), stage_s, spin_limit_cycles)


def try_prepare(
    workload: Workload,
    gpu: Gpu,
    candidate: Candidate,
    builder: Builder,
    *,
    spin_limit_cycles: int = Limits.spin_limit_cycles,
) -> PreparedKernel | Rejected | Failed:
    """The result of `prepare` with its forecast, or, as an outcome, why it may not be launched. The builder does
    everything that needs a core: if it has processes, little is left for the calling interpreter."""
    if candidate.schedule is None:
        return _library(candidate)
    stage_s: dict[str, float] = {}
    try:
        proven = builder.run(_try_prove, workload, gpu, candidate)
        if isinstance(proven, Rejected):
            return proven
        stage_s |= proven.stage_s
        builds = _build(proven, builder, stage_s)
        return builder.run(_try_tie, proven, builds, stage_s, spin_limit_cycles)
    except BuildTimeout as error:
        kind = FailureKind.COMPILE_TIMEOUT
        return Failed(stage=Stage.BUILD, kind=kind, reason=str(error), stage_s=stage_s)
    except BuildError as error:
        kind = FailureKind.COMPILE_ERROR
        return Failed(stage=Stage.BUILD, kind=kind, reason=str(error), stage_s=stage_s)


def _library(candidate: Candidate) -> PreparedKernel:
    return PreparedKernel(work=Work(plan_kind=candidate.plan_kind))


def _try_prove(workload: Workload, gpu: Gpu, candidate: Candidate) -> Proven | Rejected:
    """Runs `_prove` in a process."""
    stage_s: dict[str, float] = {}
    try:
        return _prove(workload, gpu, candidate, stage_s)
    except (IllegalSchedule, PlanError) as error:
        return Rejected(stage=Stage.VERIFY, reason=str(error), stage_s=stage_s)


def _try_tie(
    proven: Proven, builds: tuple[Built, ...], stage_s: dict[str, float], spin_limit_cycles: int
) -> PreparedKernel | Rejected:
    """Runs `_tie` in a process, with the forecast."""
    try:
        prepared = _tie(proven, builds, stage_s, spin_limit_cycles)
    except (PlanError, LaunchRefused) as error:
        return Rejected(stage=Stage.VERIFY, reason=str(error), stage_s=stage_s)
    if prepared.refusal:
        return Rejected(stage=Stage.BUILD, reason=prepared.refusal, stage_s=stage_s)
    return replace(prepared, forecast_us=forecast_us(proven.workload, proven.gpu, proven.candidate))


def _prove(
    workload: Workload, gpu: Gpu, candidate: Candidate, stage_s: dict[str, float], *, traced: bool = False
) -> Proven:
    """Proves our candidate, and renders it."""
    assert candidate.schedule is not None
    with _timed(stage_s, Stage.VERIFY):
        kernels = kernels_of(workload, gpu, candidate, candidate.schedule)
    with _timed(stage_s, Stage.RENDER):
        sources = tuple(kernel.source(traced=traced) for kernel in kernels)
    return Proven(
        workload=workload,
        gpu=gpu,
        candidate=candidate,
        kernels=kernels,
        sources=sources,
        traced=traced,
        stage_s=stage_s,
    )


def _build(proven: Proven, builder: Builder, stage_s: dict[str, float]) -> tuple[Built, ...]:
    """Builds each kernel."""
    with _timed(stage_s, Stage.BUILD):
        return tuple(builder.build(source, proven.gpu.arch) for source in proven.sources)


def _tie(
    proven: Proven, builds: tuple[Built, ...], stage_s: dict[str, float], spin_limit_cycles: int
) -> PreparedKernel:
    """Proves again with the resources that the compiler reported."""
    tied = zip(proven.kernels, builds, strict=True)
    made = zip(proven.sources, builds, strict=True)
    refusals = (refusal for built in builds if (refusal := refusal_of(built.resources)))
    return PreparedKernel(
        work=Work(
            plan_kind=proven.candidate.plan_kind,
            launchables=tuple(kernel.tied(built, traced=proven.traced) for kernel, built in tied),
            spin_limit_cycles=spin_limit_cycles,
        ),
        kernels=tuple(BuiltKernel(source=source, built=built) for source, built in made),
        stage_s=dict(stage_s),
        refusal=next(refusals, ""),
    )


@contextmanager
def _timed(stage_s: dict[str, float], stage: Stage) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        stage_s[str(stage)] = time.perf_counter() - begin
