"""A candidate made ready for the card: plans proven, source rendered and built, proof repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import attention_plans_for, plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Prepared
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Failed, FailureKind, Rejected, Stage
from tuner.errors import BuildError, IllegalSchedule, PlanError

from ..protocol.messages import Work
from ..source.launchable import LaunchRefused
from ..source.render import render
from .attention import BuiltAttention, build_attention, tie_attention
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
    schedule = candidate.schedule
    if schedule is None:
        return PreparedKernel(work=Work(plan_kind=candidate.plan_kind))
    with _timed(stage_s, Stage.VERIFY):
        plans = plans_for(workload, gpu, candidate)
        attention_plans = attention_plans_for(workload, gpu, candidate)
    with _timed(stage_s, Stage.RENDER):
        source = render(workload, schedule.tiling, traced=traced) if plans else ""
    with _timed(stage_s, Stage.BUILD):
        built = builder.build(source, gpu.arch) if plans else None
        attentions = tuple(
            build_attention(workload, index, one, gpu, builder) for index, one in enumerate(schedule.attentions)
        )
    tied = zip(schedule.attentions, attention_plans, attentions, strict=True)
    work = Work(
        plan_kind=candidate.plan_kind,
        launchable=None if built is None else tie(plans, built, workload, traced=traced),
        attentions=tuple(
            tie_attention(workload, index, one, plan, gpu, kernel.built)
            for index, (one, plan, kernel) in enumerate(tied)
        ),
        spin_limit_cycles=spin_limit_cycles,
    )
    made = PreparedKernel(work=work, source=source, built=built, attentions=attentions, stage_s=dict(stage_s))
    refusals = (refusal for build in made.builds if (refusal := refusal_of(build.resources)))
    return replace(made, refusal=next(refusals, ""))


def try_prepare(
    workload: Workload,
    gpu: Gpu,
    candidate: Candidate,
    builder: Builder,
    *,
    spin_limit_cycles: int = Limits.spin_limit_cycles,
) -> PreparedKernel | Rejected | Failed:
    """What `prepare` makes, or why that may not be launched, as an outcome."""
    stage_s: dict[str, float] = {}
    try:
        prepared = prepare(workload, gpu, candidate, builder, stage_s, spin_limit_cycles=spin_limit_cycles)
    except (IllegalSchedule, PlanError, LaunchRefused) as error:
        return Rejected(stage=Stage.VERIFY, reason=str(error), stage_s=stage_s)
    except BuildTimeout as error:
        kind = FailureKind.COMPILE_TIMEOUT
        return Failed(stage=Stage.BUILD, kind=kind, reason=str(error), stage_s=stage_s)
    except BuildError as error:
        kind = FailureKind.COMPILE_ERROR
        return Failed(stage=Stage.BUILD, kind=kind, reason=str(error), stage_s=stage_s)
    if prepared.refusal:
        return Rejected(stage=Stage.BUILD, reason=prepared.refusal, stage_s=stage_s)
    if candidate.schedule is None:
        return prepared
    return replace(prepared, forecast_us=forecast_us(workload, gpu, candidate))


@contextmanager
def _timed(stage_s: dict[str, float], stage: Stage) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        stage_s[str(stage)] = time.perf_counter() - begin
