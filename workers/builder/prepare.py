"""A candidate made ready for the card: plans proven, source rendered and built, proof repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.core.model.forecast import forecast_us
from tuner.core.plan.attention import AttentionPlan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import attention_plans_for, plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Prepared
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Rejected, Stage
from tuner.errors import BuildError, IllegalSchedule, PlanError

from ..protocol.messages import Work
from ..source.attention import attention_source
from ..source.launchable import LaunchRefused
from ..source.render import render
from .attention import BuiltAttention, tie_attention
from .nvrtc import Builder, BuildTimeout, Built
from .tie import tie
from .variants import refusal_of


@dataclass(frozen=True, kw_only=True)
class PreparedKernel(Prepared):
    """All that the card, and an artifact, need of a candidate."""

    work: Work
    source: str = ""
    #: Of the products' kernel; None for the library, and where there is no product.
    built: Built | None = None
    #: Of the attentions' kernels.
    attentions: tuple[BuiltAttention, ...] = ()
    #: Why the build may not be launched; empty where it may.
    refusal: str = ""

    @property
    def plans(self) -> tuple[VerifiedPlan, ...]:
        """With the resources that the compiler told; none for the library."""
        return self.work.plans

    @property
    def builds(self) -> tuple[Built, ...]:
        """Of all kernels."""
        products = () if self.built is None else (self.built,)
        return (*(one.built for one in self.attentions), *products)


@dataclass(frozen=True, kw_only=True)
class Proven:
    """A candidate of ours whose plans were proven, and the sources of its kernels."""

    workload: Workload
    gpu: Gpu
    candidate: Candidate
    plans: tuple[VerifiedPlan, ...]
    attention_plans: tuple[AttentionPlan, ...]
    #: Of the products' kernel; empty where there is no product.
    source: str
    #: Of each attention's kernel.
    attention_sources: tuple[str, ...]
    #: Whether the build is to stamp its tasks.
    traced: bool
    #: Seconds by stage.
    stage_s: dict[str, float]

    @property
    def schedule(self) -> Schedule:
        """The candidate's."""
        assert self.candidate.schedule is not None
        return self.candidate.schedule


@dataclass(frozen=True, kw_only=True)
class Builds:
    """Of one candidate."""

    #: Of the products' kernel; None where there is no product.
    products: Built | None
    attentions: tuple[BuiltAttention, ...]


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
    """Proves, renders, builds, and proves again; seconds by stage go into `stage_s`. A wait may last
    `spin_limit_cycles`.

    A `traced` build stamps its tasks. It needs a few registers more, so it may spill where the timed one does not.

    Raises:
        IllegalSchedule: the schedule is outside of the legal space.
        PlanError: a plan is refused, before the build or with what it reported.
        LaunchRefused: the build is not that of the plans' kernel.
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
    """What `prepare` makes, with its forecast, or why that may not be launched, as an outcome. All that needs a core
    is handed to the builder: where that has processes for it, little is left for the interpreter that asks."""
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
    """As `_prove`, in a process."""
    stage_s: dict[str, float] = {}
    try:
        return _prove(workload, gpu, candidate, stage_s)
    except (IllegalSchedule, PlanError) as error:
        return Rejected(stage=Stage.VERIFY, reason=str(error), stage_s=stage_s)


def _try_tie(
    proven: Proven, builds: Builds, stage_s: dict[str, float], spin_limit_cycles: int
) -> PreparedKernel | Rejected:
    """As `_tie`, in a process, with the forecast."""
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
    """Proves a candidate of ours, and renders it."""
    assert candidate.schedule is not None
    with _timed(stage_s, Stage.VERIFY):
        plans = plans_for(workload, gpu, candidate)
        attention_plans = attention_plans_for(workload, gpu, candidate)
    with _timed(stage_s, Stage.RENDER):
        source = render(workload, candidate.schedule.tiling, traced=traced) if plans else ""
        kernels = zip(workload.launch_ops, candidate.schedule.launch_ops, attention_plans, strict=True)
        attention_sources = tuple(
            attention_source(op, one, traced_tasks=plan.most_tasks if traced else 0) for op, one, plan in kernels
        )
    return Proven(
        workload=workload,
        gpu=gpu,
        candidate=candidate,
        plans=plans,
        attention_plans=attention_plans,
        source=source,
        attention_sources=attention_sources,
        traced=traced,
        stage_s=stage_s,
    )


def _build(proven: Proven, builder: Builder, stage_s: dict[str, float]) -> Builds:
    arch = proven.gpu.arch
    with _timed(stage_s, Stage.BUILD):
        return Builds(
            products=builder.build(proven.source, arch) if proven.plans else None,
            attentions=tuple(
                BuiltAttention(source=source, built=builder.build(source, arch)) for source in proven.attention_sources
            ),
        )


def _tie(proven: Proven, builds: Builds, stage_s: dict[str, float], spin_limit_cycles: int) -> PreparedKernel:
    """Proves again with what the compiler told."""
    workload, gpu, products = proven.workload, proven.gpu, builds.products
    tied = zip(proven.schedule.launch_ops, proven.attention_plans, builds.attentions, strict=True)
    work = Work(
        plan_kind=proven.candidate.plan_kind,
        launchable=None if products is None else tie(proven.plans, products, workload, traced=proven.traced),
        attentions=tuple(
            tie_attention(workload, index, one, plan, gpu, kernel.built, traced=proven.traced)
            for index, (one, plan, kernel) in enumerate(tied)
        ),
        spin_limit_cycles=spin_limit_cycles,
    )
    made = PreparedKernel(
        work=work,
        source=proven.source,
        built=products,
        attentions=builds.attentions,
        stage_s=dict(stage_s),
    )
    refusals = (refusal for build in made.builds if (refusal := refusal_of(build.resources)))
    return replace(made, refusal=next(refusals, ""))


@contextmanager
def _timed(stage_s: dict[str, float], stage: Stage) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        stage_s[str(stage)] = time.perf_counter() - begin
