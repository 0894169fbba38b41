"""Capacity: a CTA fits on an SM, the grid is resident if it must be, and no index exceeds the device's limits.

`tuner.core.plan.table.words` defines the range of each word; here words are checked against the kernel and the GPU.
"""

from __future__ import annotations

from tuner.core.legal.warpgroups.workloads import MAX_CTAS
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.order.split_k import num_tiles, slots_problem
from tuner.core.plan.table.header import MAX_CLUSTER_SIZE
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import Resources, occupancy_limits
from tuner.core.schedule.tiling import Engine
from tuner.errors import ResourceError


def check_capacity(plan: Plan, graph: TileGraph, resources: Resources, gpu: Gpu, *, is_paired: bool = False) -> None:
    """Checks that one CTA fits on an SM; and if tasks wait, and CTAs have different tasks, that all CTAs are resident
    at once. The CTAs of a paired launch wait for those of another launch.

    Raises:
        ResourceError: a resource is insufficient, with its name.
    """
    _check_indices(plan, graph, resources)
    limits = occupancy_limits(resources, gpu)
    what, fewest = min(limits.items(), key=lambda item: item[1])
    needs = (
        f"a CTA takes {resources.num_threads} threads, {resources.smem_bytes} bytes of shared memory and "
        f"{resources.registers_per_thread} registers per thread; {what} of {gpu.name} allow {fewest} per SM"
    )
    if fewest < 1:
        raise ResourceError("a CTA does not fit", needs)
    resident, size = gpu.num_clusters(resources.cluster_size) * fewest, resources.cluster_size
    if plan.needs_all_ctas and not is_paired and plan.num_ctas > resident:
        what = "CTAs" if size == 1 else f"clusters of {size} CTAs"
        raise ResourceError(
            "queues and first waves need every CTA to be resident",
            f"the grid has {plan.num_ctas} {what}, but {gpu.num_sms} SMs hold {resident}; {needs}",
        )


def _check_indices(plan: Plan, graph: TileGraph, resources: Resources) -> None:
    """Checks that all objects that the device indexes by counts of the plan exist, except signals."""
    tiling, size = graph.tiling, graph.tiling.cluster_size
    if size > MAX_CLUSTER_SIZE:
        most = f"a cluster has at most {MAX_CLUSTER_SIZE} CTAs"
        raise ResourceError("the cluster is too large", f"the tiling has a cluster of {size} CTAs; {most}")
    if resources.cluster_size != size:
        mine = f"they are for clusters of {resources.cluster_size}, but the tiling's kernel has clusters of {size}"
        raise ResourceError("the resources are those of another kernel", mine)
    if plan.held_stages > (ahead := tiling.stages_ahead):
        right = f"it must be 0 to {ahead}, the number of weight stages that its ring loads before a task's inputs"
        raise ResourceError("more stages are held back than exist", f"held_stages is {plan.held_stages}; {right}")
    if plan.num_signals > (tiles := sum(map(num_tiles, graph.workload.tile_ops, tiling.tiles))):
        right = f"it must be at most {tiles}, the number of tiles of the workload: each posts to one signal"
        raise ResourceError("more signals than tiles", f"num_signals is {plan.num_signals}; {right}")
    if tiling.engine is Engine.WGMMA and plan.num_ctas > MAX_CTAS:
        right = f"it must be at most {MAX_CTAS}: the wgmma kernel's parameter holds this many first tasks"
        raise ResourceError("the grid is too large", f"num_ctas is {plan.num_ctas}; {right}")
    able = graph.readers if tiling.in_band else 0
    if plan.in_band_ops & ~able:
        what = "reads another op of this launch as A, in a kernel that reads in band"
        right = f"its bits must be among those of {able}: bit i is set if op i {what}"
        raise ResourceError("an op cannot read in band", f"in_band_ops is {plan.in_band_ops}; {right}")
    if problem := slots_problem(graph.workload, tiling, plan.num_split_tiles):
        raise ResourceError("the slots do not fit", f"num_split_tiles is {plan.num_split_tiles}: {problem}")
