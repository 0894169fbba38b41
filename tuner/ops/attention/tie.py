"""From an attention's schedule to what may be launched: plan proven, source rendered and built, all tied."""

from __future__ import annotations

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import REGISTER_UNIT_PER_WARP
from tuner.core.problem.workload import Workload
from tuner.errors import ResourceError
from tuner.ops.attention.append import render_append
from tuner.ops.attention.launchable import AttentionLaunchable
from tuner.ops.attention.plans import attention_digest
from tuner.ops.attention.schedule import AttentionSchedule
from tuner.ops.attention.source import source_of
from tuner.ops.attention.tasks import AttentionPlan
from tuner.workers.builder.nvrtc import Builder, Built, build_key
from tuner.workers.source.launchable import LaunchRefused, Ties, cubin_digest


def build_appends(workload: Workload, gpu: Gpu, builder: Builder) -> tuple[Built, ...]:
    """Of each attention the kernel that may go in front of it.

    Raises:
        BuildError: the source does not compile, or not in time.
    """
    return tuple(builder.build(render_append(op.shape, op.form.paged), gpu.arch) for op in workload.launch_ops)


def tie_attention(
    workload: Workload,
    index: int,
    schedule: AttentionSchedule,
    plan: AttentionPlan,
    gpu: Gpu,
    built: Built,
    *,
    traced: bool = False,
) -> AttentionLaunchable:
    """Ties a proven plan to the build of its kernel, which stamps all tasks of the plan if it is `traced`.

    Raises:
        LaunchRefused: the build is not that of the kernel.
        ResourceError: with what the compiler told, an SM does not hold a CTA.
    """
    op = workload.launch_ops[index]
    traced_tasks = plan.most_tasks if traced else 0
    if build_key(source_of(op, schedule, traced_tasks=traced_tasks), gpu.arch, built.compiler) != built.key:
        raise LaunchRefused(f"build {built.key[:12]} is not that of {schedule}")
    _check_registers(built, schedule.tiling_of(op.shape).num_threads, gpu)
    ties = Ties(
        workload=workload.digest,
        proofs=(attention_digest(plan, schedule),),
        build=built.key,
        cubin=cubin_digest(built.cubin),
    )
    return AttentionLaunchable(
        workload=workload,
        index=index,
        schedule=schedule,
        plan=plan,
        cubin=built.cubin,
        ties=ties,
        traced_tasks=traced_tasks,
    )


def _check_registers(built: Built, num_threads: int, gpu: Gpu) -> None:
    of_thread = built.resources.registers_per_thread
    of_warp = -(-of_thread * 32 // REGISTER_UNIT_PER_WARP) * REGISTER_UNIT_PER_WARP
    if (taken := of_warp * num_threads // 32) > gpu.registers_per_sm:
        raise ResourceError(
            "an SM does not hold a CTA", f"{num_threads} threads take {taken} registers of {gpu.registers_per_sm}"
        )
