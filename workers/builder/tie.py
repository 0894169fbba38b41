"""The one way from proven plans, a build and a workload to what may be launched."""

from __future__ import annotations

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.problem.resources import Resources
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan, recheck

from ..source.launchable import Launchable, LaunchRefused, Ties, cubin_digest
from ..source.render import render
from ..source.variants import Variant
from .nvrtc import Built, build_key


def tie(
    plans: tuple[VerifiedPlan, ...],
    built: Built,
    workload: Workload,
    *,
    traced: bool = False,
    variant: Variant = Variant.MEASURED,
) -> Launchable:
    """Proves the plans again with what the compiler told, and ties them to the build; `traced` and `variant` as it was
    rendered.

    Raises:
        LaunchRefused: the plans are not of this workload and of one tiling, or the build is not that of their kernel.
        ResourceError: with what the compiler told, a grid does not fit any more.
    """
    tiling, gpu = plans[0].graph.tiling, plans[0].gpu
    for index, plan in enumerate(plans):
        mine = plan.graph
        if mine.workload != workload:
            raise LaunchRefused(f"plan {index} is of {mine.workload.describe()}, not of {workload.describe()}")
        if (mine.tiling, plan.gpu) != (tiling, gpu):
            raise LaunchRefused(f"plan {index} is of {mine.tiling} on {plan.gpu.id}, plan 0 of {tiling} on {gpu.id}")
    if build_key(render(workload, tiling, traced=traced, variant=variant), gpu.arch, built.compiler) != built.key:
        raise LaunchRefused(f"build {built.key[:12]} is not that of {workload.describe()} in tiles of {tiling}")
    ring_bytes = dynamic_smem_bytes(workload, tiling)
    resources = Resources(
        num_threads=tiling.num_threads,
        smem_bytes=ring_bytes + built.resources.static_smem_bytes,
        registers_per_thread=built.resources.registers_per_thread,
        cluster_size=tiling.cluster_size,
    )
    proven = tuple(recheck(plan, resources) for plan in plans)
    ties = Ties(
        workload=workload.digest,
        proofs=tuple(plan.digest for plan in proven),
        build=built.key,
        cubin=cubin_digest(built.cubin),
    )
    return Launchable(plans=proven, cubin=built.cubin, smem_bytes=ring_bytes, ties=ties)
