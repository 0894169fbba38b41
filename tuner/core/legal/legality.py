"""The definition of legality, used by sampler, verifier, service and tests; each refusal is a sentence.

Every rule is a function of one axis and its dependencies, and returns None or the sentence. If a plan has several
names, only one is legal, and refusals say which. So two legal schedules never have the same source and plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from tuner.core.legal import converted
from tuner.core.legal import mma as engine_mma
from tuner.core.legal import simt as engine_simt
from tuner.core.legal import wgmma as engine_wgmma
from tuner.core.legal.launch_ops import launch_kind_problem, launch_ops_problem
from tuner.core.legal.neighbours import neighbours_problem
from tuner.core.legal.ordering_rules import (
    assignment_problem,
    interleave_problem,
    position_problem,
    raster_problem,
    run_ahead_problem,
    startup_prefetch_problem,
    sync_problem,
)
from tuner.core.legal.own_tasks import own_resources, own_rules, own_task_bytes, own_tasks_problem
from tuner.core.legal.scattered_sums import parts_at_once_problem, scattered_sums_problem
from tuner.core.legal.small_elements import conversion_problem, multiply_problem, parts_problem
from tuner.core.legal.split_rules import part_order_problem, split_order_problem, split_tiles_problem
from tuner.core.legal.sum_room import sum_room_problem
from tuner.core.legal.warpgroups.parts import engines_problem
from tuner.core.plan.build import grid_size
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.interleaves import block_shapes, merge_blocks
from tuner.core.plan.order.split_k import split_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.joined import joined_workload
from tuner.core.problem.resources import MAX_REGISTERS_PER_THREAD, Resources, occupancy_limits
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import values_problem
from tuner.core.schedule.cache_hints import hint_problem
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.levels import TileOpSchedule, schedule_class, tile_ops_of
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, SplitOrder
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, PartSums, Tiling
from tuner.errors import IllegalSchedule, InvalidInput

MAX_CTAS_PER_SM = 2
REGISTERS_PER_SM = 65_536


class _Rules(Protocol):
    """The rules of an engine, in a separate module."""

    def workload_problem(self, workload: Workload, gpu: Gpu) -> str | None: ...
    def tiling_problem(self, workload: Workload, tiling: Tiling) -> str | None: ...
    def smem_bytes(self, workload: Workload, tiling: Tiling) -> int: ...
    def registers(self, workload: Workload, tiling: Tiling) -> int: ...
    def least_registers(self, workload: Workload, tiling: Tiling) -> int: ...


_RULES: dict[Engine, _Rules] = {Engine.MMA: engine_mma, Engine.WGMMA: engine_wgmma, Engine.SIMT: engine_simt}


def dynamic_smem_bytes(workload: Workload, tiling: Tiling) -> int:
    """Shared memory that the kernel requests at launch, bytes: the larger of what the engine needs and what ops whose
    kind defines the task need, since they use it one after the other."""
    smem_bytes = _RULES[tiling.engine].smem_bytes(workload, tiling)
    return max(smem_bytes, own_task_bytes(workload, tiling)) if workload.own_tile_ops else smem_bytes


def estimated_registers(workload: Workload, tiling: Tiling) -> int:
    """Registers per thread, estimated before compilation."""
    registers = _RULES[tiling.engine].registers(workload, tiling)
    own = own_resources(workload, tiling)
    most = max(registers, *(one.registers_per_thread for one in own)) if own else registers
    return min(most, register_cap(tiling))


def register_cap(tiling: Tiling) -> int:
    """Maximum registers per thread with which the resident CTAs fit on an SM.

    Source: CUDA C++ Programming Guide, "Compute Capabilities": 65,536 registers per SM, allocated to a warp in units of
    8 per thread.
    """
    share = REGISTERS_PER_SM // (tiling.resident_ctas * tiling.num_threads)
    return min(share // 8 * 8, MAX_REGISTERS_PER_THREAD)


def resident_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the compiler cannot work with the tiling's share of the registers, or does not need to."""
    if not 1 <= tiling.resident_ctas <= MAX_CTAS_PER_SM:
        return f"{tiling.resident_ctas} resident CTAs: use 1 to {MAX_CTAS_PER_SM}"
    if tiling.resident_ctas == 1:
        return None
    if tiling.engine is Engine.WGMMA:
        return "the wgmma engine runs one CTA per SM: use resident_ctas 1"
    if (cap := register_cap(tiling)) == MAX_REGISTERS_PER_THREAD:
        return (
            f"{tiling.resident_ctas} CTAs of {tiling.num_warps} warps have enough registers anyway: use resident_ctas 1"
        )
    if (least := _RULES[tiling.engine].least_registers(workload, tiling)) > cap:
        return f"a thread needs about {least} registers, but would have {cap}: use resident_ctas 1, or smaller tiles"
    return None


def estimated_resources(workload: Workload, tiling: Tiling) -> Resources:
    """Resources of a CTA, estimated before compilation."""
    return Resources(
        num_threads=tiling.num_threads,
        smem_bytes=dynamic_smem_bytes(workload, tiling),
        registers_per_thread=estimated_registers(workload, tiling),
        cluster_size=tiling.cluster_size,
    )


def gpu_problem(gpu: Gpu) -> str | None:
    """Why no schedule runs on this GPU."""
    if gpu.compute_capability < (8, 0):
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: the kernels need 8.0 (cp.async, bf16)"
    return None


def workload_problem(workload: Workload, gpu: Gpu) -> str | None:
    """Why no schedule of the workload runs on this GPU."""
    return gpu_problem(gpu) or conversion_problem(workload, gpu)


def engine_problem(workload: Workload, gpu: Gpu, engine: Engine) -> str | None:
    """Why the engine cannot run this workload on this GPU with any tiles."""
    row = workload.dtype.row
    refused = conversion_problem(workload, gpu) or multiply_problem(workload.dtype, engine)
    refused = refused or converted.engine_problem(workload, engine) or engines_problem(workload, engine)
    if refused := refused or parts_problem(workload, engine):
        return refused
    if engine is Engine.WGMMA and row.tensor_map is None:
        return f"tensor maps do not support elements of {workload.dtype}: use simt"
    return own_tasks_problem(workload, engine) or _RULES[engine].workload_problem(workload, gpu)


def tiling_problem(workload: Workload, gpu: Gpu, tiling: Tiling) -> str | None:
    """Why the tiling cannot be compiled, or does not fit the GPU."""
    if len(tiling.tiles) != len(workload.tile_ops):
        return f"{len(tiling.tiles)} tiles for {len(workload.tile_ops)} ops: pass one tile per op"
    return (
        values_problem(tiling)
        or engine_problem(workload, gpu, tiling.engine)
        or _RULES[tiling.engine].tiling_problem(workload, tiling)
        or neighbours_problem(workload, tiling)
        or split_problem(workload, tiling)
        or scattered_sums_problem(workload, tiling)
        or sum_room_problem(workload, tiling)
        or hint_problem(workload, tiling)
        or resident_problem(workload, tiling)
        or residency_problem(estimated_resources(workload, tiling), gpu, tiling.resident_ctas)
    )


def residency_problem(resources: Resources, gpu: Gpu, ctas_per_sm: int) -> str | None:
    """Why `ctas_per_sm` CTAs do not fit on one SM."""
    if resources.smem_bytes > gpu.smem_per_cta_bytes:
        return f"the stages take {resources.smem_bytes} bytes; a CTA on {gpu.name} has {gpu.smem_per_cta_bytes}"
    limits = occupancy_limits(resources, gpu)
    if (fewest := min(limits.values())) < ctas_per_sm:
        what = next(name for name, limit in limits.items() if limit == fewest)
        return f"{what} of {gpu.name} allow {fewest} such CTAs per SM, not {ctas_per_sm}"
    return None


def grid_problem(
    num_tasks: int, resources: Resources, gpu: Gpu, ctas_per_sm: int, reserved_sms: int, neighbours: int = 1
) -> str | None:
    """Why there is no such grid, or which simpler numbers describe the same one."""
    if not 1 <= ctas_per_sm <= MAX_CTAS_PER_SM:
        return f"{ctas_per_sm} CTAs per SM: use 1 to {MAX_CTAS_PER_SM}"
    cluster = resources.cluster_size
    placed = cluster * neighbours
    if not 0 <= reserved_sms <= gpu.num_sms - placed:
        return f"{reserved_sms} reserved SMs of {gpu.num_sms}: use 0 to {gpu.num_sms - placed}"
    size = min(num_tasks, ctas_per_sm * gpu.num_clusters(placed, reserved_sms) * neighbours)
    plain = next(
        (ctas, reserved)
        for ctas in range(1, ctas_per_sm + 1)
        for reserved in (0, max(0, gpu.num_sms - size * cluster // ctas), reserved_sms)
        if min(num_tasks, ctas * gpu.num_clusters(placed, reserved) * neighbours) == size
    )
    if plain != (ctas_per_sm, reserved_sms):
        what = "CTAs" if cluster == 1 else f"clusters of {cluster} CTAs"
        given = f"{ctas_per_sm} CTAs per SM less {reserved_sms} SMs is a grid of {size} {what} for {num_tasks} tasks"
        return f"{given}: use {plain[0]} per SM less {plain[1]}"
    return residency_problem(resources, gpu, ctas_per_sm)


def kind_problem(workload: Workload, gpu: Gpu, kind: PlanKind) -> str | None:
    """Why the workload cannot be launched in this plan kind on the GPU."""
    if kind.is_programmatic and gpu.compute_capability < (9, 0):
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}: programmatic dependent launch needs 9.0"
    if kind.is_joined:
        return _joined_problem(workload)
    has_launch_op = bool(workload.launch_ops or workload.forced_starts)
    if has_launch_op and (problem := launch_kind_problem(workload, kind)):
        return problem
    if kind.is_side_by_side and len(workload.ops) != 2:
        return f"{len(workload.ops)} ops: two streams need exactly two"
    if kind.is_side_by_side and workload.own_tile_ops:
        return f"{workload.tile_ops[workload.own_tile_ops[0]].name} is no product, and its programs run on one stream"
    if not kind.is_for(len(workload.ops)):
        kinds = [str(other) for other in PlanKind if other.is_ours and other.is_for(len(workload.ops))]
        return f"not available for {len(workload.ops)} ops: use one of {', '.join(kinds)}"
    return None


def _joined_problem(workload: Workload) -> str | None:
    try:
        joined_workload(workload)
    except InvalidInput as error:
        return error.problem
    return None


def runs_problem(num_ops: int, kind: PlanKind, run_starts: tuple[int, ...], forced: tuple[int, ...] = ()) -> str | None:
    """Why the products cannot be launched in these runs, or which plan kind launches them in the same way; a run begins
    at each op of `forced`."""
    if not kind.is_in_runs:
        return f"runs that begin at {run_starts}: only the kind runs has them; leave them out" if run_starts else None
    if list(run_starts) != sorted(set(run_starts) & set(range(1, num_ops))):
        return f"runs that begin at {run_starts}: use some of ops 1 to {num_ops - 1}, ascending"
    if missing := [op for op in forced if op not in run_starts]:
        begins = f"runs that begin at {run_starts or 'op 0 alone'}"
        return f"{begins}: the launch of another op comes before op {missing[0]}; start a run with it"
    if not run_starts:
        return "one run of all ops is a single launch: use fused_pdl"
    if len(run_starts) == num_ops - 1:
        return "a run for each op is one launch per op: use n_launches_pdl"
    return None


def check_kind(workload: Workload, gpu: Gpu, kind: PlanKind, schedule: Schedule) -> None:
    """Checks that the workload can be launched in this plan kind on the GPU, with this schedule.

    Raises:
        IllegalSchedule: it cannot, with a sentence as the message.
    """
    problem = kind_problem(workload, gpu, kind)
    starts, forced = schedule.ordering.run_starts, workload.forced_starts
    problem = problem or runs_problem(len(workload.tile_ops), kind, starts, forced)
    if kind.is_side_by_side and schedule.tiling.neighbours > 1:
        problem = "the CTAs of two launches take whichever SMs are free: use neighbours 1"
    if kind.is_side_by_side and schedule.tiling.part_sums is PartSums.SCATTERED:
        problem = f"parts of one launch would wait for SMs that the other launch holds: use part_sums {PartSums.LAST}"
    if kind.is_side_by_side and not schedule.ordering.assignment.is_static:
        problem = "drawn tickets do not tell how many CTAs have started: use static"
        if schedule.ordering.assignment is Assignment.FIRST_WAVE:
            problem = "after the first wave, tasks are drawn from the other launch's counter: use static"
    if problem:
        raise IllegalSchedule(f"{kind}: {problem}")


def check_candidate(workload: Workload, gpu: Gpu, candidate: Candidate) -> None:
    """Checks the schedule of our candidate, and that the workload can be launched in its plan kind.

    Raises:
        IllegalSchedule: the first violated rule, as a sentence.
        ValueError: it has no schedule.
    """
    if (schedule := candidate.schedule) is None:
        raise ValueError(f"a {candidate.plan_kind} candidate needs a schedule")
    check_schedule(launched(workload, candidate)[0], gpu, schedule)
    check_kind(workload, gpu, candidate.plan_kind, schedule)


def check_schedule(workload: Workload, gpu: Gpu, schedule: Schedule) -> None:
    """Checks that the schedule can be compiled, fits the GPU, and is the simplest name of its plan.

    Raises:
        IllegalSchedule: the first violated rule, as a sentence.
    """
    if problem := _schedule_problem(workload, gpu, schedule):
        raise IllegalSchedule(f"{schedule}: {problem}")


def check_tiles(workload: Workload, gpu: Gpu, schedule: Schedule) -> None:
    """Same as `check_schedule`, but for tile ops only, whatever the schedules of the launch ops are.

    Raises:
        IllegalSchedule: the first violated rule, as a sentence.
    """
    if problem := tiles_problem(workload, gpu, schedule):
        raise IllegalSchedule(f"{schedule}: {problem}")


def is_legal(workload: Workload, gpu: Gpu, schedule: Schedule) -> bool:
    """Whether `check_schedule` accepts it."""
    return _schedule_problem(workload, gpu, schedule) is None


def _schedule_problem(workload: Workload, gpu: Gpu, schedule: Schedule) -> str | None:
    problem = gpu_problem(gpu) or launch_ops_problem(workload, gpu, schedule.launch_ops)
    return problem or tiles_problem(workload, gpu, schedule)


def tiles_problem(workload: Workload, gpu: Gpu, schedule: Schedule) -> str | None:
    """Why `check_tiles` refuses it."""
    if workload.tile_ops:
        problem = gpu_problem(gpu) or _kept_tiling_problem(workload, gpu, schedule.tiling)
        return problem or _ordering_problem(workload, gpu, schedule)
    if schedule.tiling.tiles:
        return f"{len(schedule.tiling.tiles)} tiles, but the workload has no product: pass none"
    return None


#: Cached, since most neighbours of a schedule share its tiling, and so do forecasts of many orders.
_kept_tiling_problem = lru_cache(maxsize=256)(tiling_problem)
_kept_resources = lru_cache(maxsize=256)(estimated_resources)


def kinds_problem(workload: Workload, gpu: Gpu, schedules: Sequence[TileOpSchedule]) -> str | None:
    """Why a kind of tile op refuses the schedule of one of the workload's tile ops. Nothing else of the kind is called
    for a schedule that it refuses."""
    for op, one in zip(workload.tile_ops, schedules, strict=True):
        wanted = schedule_class(op.KIND) or TileOpSchedule
        if type(one) is not wanted:
            return (
                f"a schedule of {one.kind or 'any tile op'} for {op.name}: pass one of {wanted.kind or 'any tile op'}"
            )
        if wanted is not TileOpSchedule and (problem := values_problem(one)):
            return problem
        if not op.is_plain_product and (refused := own_rules(op).refuse(workload, gpu, op, one)):
            return refused
    return None


def accepted(
    workload: Workload, gpu: Gpu, tilings: Iterable[Tiling], before: Sequence[TileOpSchedule]
) -> Iterator[Tiling]:
    """The tilings that no kind of op refuses; `before` has the axes that only kinds know, as in `tile_ops_of`."""
    if all(op.is_plain_product for op in workload.tile_ops):
        return iter(tilings)
    by_rows = Ordering(rasters=(Raster(),) * len(workload.tile_ops))
    both = ((one, tile_ops_of(one, by_rows, before)) for one in tilings)
    return (one for one, schedules in both if kinds_problem(workload, gpu, schedules) is None)


def _ordering_problem(workload: Workload, gpu: Gpu, schedule: Schedule) -> str | None:
    ordering, tiles, graph = schedule.ordering, schedule.tiling.tiles, tile_graph(workload, schedule.tiling)
    if problem := values_problem(ordering) or kinds_problem(workload, gpu, schedule.tile_ops):
        return problem
    if problem := split_order_problem(graph, ordering.split_order):
        return problem
    graph = graph.with_parts(strided=ordering.split_order is SplitOrder.STRIDED)
    if problem := interleave_problem(workload, tiles, ordering.interleave):
        return problem
    blocks = merge_blocks(workload, tiles, graph.op_indices, ordering.interleave)
    for op, raster in enumerate(ordering.rasters):
        if problem := raster_problem(raster, block_shapes(blocks, op), workload.tile_ops[op].name):
            return problem
    resources = _kept_resources(workload, schedule.tiling)
    num_ctas = grid_size(graph.num_tasks, ordering, gpu, schedule.tiling)
    if (resident := schedule.tiling.resident_ctas) > ordering.ctas_per_sm:
        return f"registers are capped for {resident} CTAs per SM, but {ordering.ctas_per_sm} run: use resident_ctas 1"
    return (
        (part_order_problem(graph, ordering.interleave) if ordering.part_major else None)
        or sync_problem(graph, ordering.interleave, ordering.granularity, ordering.sync_width)
        or position_problem(graph, ordering.granularity, ordering.sync_width, ordering.wait_position)
        or run_ahead_problem(graph, ordering.run_ahead)
        or startup_prefetch_problem(graph, ordering)
        or grid_problem(
            graph.num_tasks,
            resources,
            gpu,
            ordering.ctas_per_sm,
            ordering.reserved_sms,
            schedule.tiling.neighbours,
        )
        or _queues_problem(graph, ordering, num_ctas)
        or _common_problem(graph, ordering, gpu, num_ctas)
    )


def _queues_problem(graph: TileGraph, ordering: Ordering, num_ctas: int) -> str | None:
    """Why a grid of `num_ctas` CTAs or clusters cannot share the tasks as `ordering` says."""
    return (
        assignment_problem(graph, ordering.interleave, ordering.assignment, ordering.partition, num_ctas)
        or split_tiles_problem(graph, ordering, num_ctas)
        or parts_at_once_problem(graph, ordering, num_ctas)
    )


def _common_problem(graph: TileGraph, ordering: Ordering, gpu: Gpu, num_ctas: int) -> str | None:
    """Why the fallback grid, for cards that hold fewer clusters than this one, cannot share the tasks this way."""
    common = grid_size(graph.num_tasks, ordering, gpu.as_any_card, graph.tiling)
    if common == num_ctas or not (problem := _queues_problem(graph, ordering, common)):
        return None
    return f"{gpu.name} cards hold {common} clusters of {graph.tiling.cluster_size}, not {num_ctas}: {problem}"
