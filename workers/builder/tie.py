"""The only way to make a launchable from proven plans, a build and a workload."""

from __future__ import annotations

from typing import Any

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.plan.op_launches import OpLaunches
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import Resources, occupancy_limits
from tuner.core.problem.workload import Workload
from tuner.core.proof.own_plans import launches_for, own_digest
from tuner.core.proof.verify import VerifiedPlan, recheck
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.errors import ResourceError

from ..source.launchable import Launchable, LaunchRefused, Ties, cubin_digest
from ..source.own_launchable import OwnLaunchable
from ..source.own_source import own_source
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
    """Proves the plans again with the reported resources, and ties them to the build; `traced` and `variant` are those
    of its source.

    Raises:
        LaunchRefused: the plans do not belong to this workload and one tiling, or the build does not belong to their
            kernel.
        ResourceError: with the reported resources, a grid no longer fits.
    """
    tiling, gpu = plans[0].graph.tiling, plans[0].gpu
    for index, plan in enumerate(plans):
        mine = plan.graph
        if mine.workload != workload:
            raise LaunchRefused(f"plan {index} is for {mine.workload.describe()}, not {workload.describe()}")
        if (mine.tiling, plan.gpu) != (tiling, gpu):
            raise LaunchRefused(
                f"plan {index} is for {mine.tiling} on {plan.gpu.id}, but plan 0 for {tiling} on {gpu.id}"
            )
    if build_key(render(workload, tiling, traced=traced, variant=variant), gpu.arch, built.compiler) != built.key:
        raise LaunchRefused(f"build {built.key[:12]} does not belong to {workload.describe()} in tiles of {tiling}")
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


def tie_own(
    workload: Workload,
    index: int,
    schedule: LaunchOpSchedule,
    plan: Any,
    gpu: Gpu,
    built: Built,
    *,
    traced_tasks: int = 0,
) -> OwnLaunchable:
    """Ties a proven plan of a launch op to the build of its kernels, which stamp `traced_tasks` tasks per CTA.

    Raises:
        LaunchRefused: the build does not belong to the op, or lacks a kernel that its launches name.
        ResourceError: with the reported resources, an SM cannot hold a CTA.
    """
    op = workload.launch_ops[index]
    if build_key(own_source(op, schedule, workload.dtype, traced_tasks), gpu.arch, built.compiler) != built.key:
        raise LaunchRefused(f"build {built.key[:12]} does not belong to {op.name} with {schedule}")
    launches = launches_for(workload, op, schedule, plan)
    _check_fits(op.name, launches, built, gpu)
    ties = Ties(
        workload=workload.digest,
        proofs=(own_digest(workload, op, schedule, plan),),
        build=built.key,
        cubin=cubin_digest(built.cubin),
    )
    return OwnLaunchable(
        workload=workload,
        index=index,
        schedule=schedule,
        plan=plan,
        cubin=built.cubin,
        ties=ties,
        traced_tasks=traced_tasks,
    )


def _check_fits(name: str, launches: OpLaunches, built: Built, gpu: Gpu) -> None:
    for one in launches.launches:
        if f"\0{one.kernel}\0".encode() not in built.cubin:  # a name in the table of symbols
            problem = f"the source of {name} has no kernel {one.kernel}"
            raise LaunchRefused(f'{problem}: declare it extern "C" __global__')
        resources = Resources(
            num_threads=one.num_threads,
            smem_bytes=one.smem_bytes + built.resources.static_smem_bytes,
            registers_per_thread=built.resources.registers_per_thread,
            cluster_size=one.cluster,
        )
        limits = occupancy_limits(resources, gpu)
        if (limit := min(limits, key=limits.__getitem__)) and limits[limit] < 1:
            what = (
                f"{one.num_threads} threads of {resources.registers_per_thread} registers, {resources.smem_bytes} bytes"
            )
            raise ResourceError("an SM cannot hold a CTA", f"{name}, kernel {one.kernel}: {what}; it is {limit}")
