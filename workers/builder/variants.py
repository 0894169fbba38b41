"""Builds a kernel's variants for its artifact, if the compiler and the card allow them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tuner.core.proof.verify import VerifiedPlan
from tuner.errors import BuildError, PlanError

from ..source.launchable import Launchable, LaunchRefused
from ..source.render import render
from ..source.variants import Variant, variants_of
from .nvrtc import Builder, Resources
from .tie import tie


@dataclass(frozen=True, kw_only=True)
class VariantBuild:
    """One variant of an artifact's kernel, or why there is none."""

    variant: Variant
    #: None if it may not be launched.
    launchable: Launchable | None
    #: Why it may not be launched; empty if it may.
    refusal: str = ""


def refusal_of(resources: Resources) -> str:
    """Why a build with these resources may not be launched; empty if it may."""
    if resources.spill_bytes:
        return f"the compiler spills {resources.spill_bytes} bytes of registers: a smaller warp tile would fit"
    if resources.warnings:
        return f"the compiler warns: {resources.warnings[0]}"
    return ""


def build_variants(
    plans: tuple[VerifiedPlan, ...], builder: Builder, *, programmatic: bool
) -> tuple[VariantBuild, ...]:
    """Every variant that an artifact of these plans needs, built in parallel if the builder has room; the plans are
    proven again with the resources of each build."""
    variants = variants_of(plans, programmatic=programmatic)
    with ThreadPoolExecutor(len(variants)) as threads:
        return tuple(threads.map(lambda variant: _build(plans, builder, variant), variants))


def _build(plans: tuple[VerifiedPlan, ...], builder: Builder, variant: Variant) -> VariantBuild:
    workload, tiling = plans[0].graph.workload, plans[0].graph.tiling
    try:
        built = builder.build(render(workload, tiling, variant=variant), plans[0].gpu.arch)
        if refusal := refusal_of(built.resources):
            return VariantBuild(variant=variant, launchable=None, refusal=refusal)
        launchable = tie(plans, built, workload, variant=variant)
    except (BuildError, PlanError, LaunchRefused) as error:
        return VariantBuild(variant=variant, launchable=None, refusal=str(error))
    return VariantBuild(variant=variant, launchable=launchable)
