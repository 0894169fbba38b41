"""What is tried of the pair attention -> projection at each row: an attention kernel, then a GEMM of our engine.

The second launch fills its ring with weights while the first one runs, where an SM has room for both. So rings of
several sizes are tried: each as large as an SM has room for, and both together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tuner.core.legal.legality import dynamic_smem_bytes, tiling_problem
from tuner.core.legal.wgmma import STARTUP_PREFETCHES
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.core.problem.workload import GemmOp, Workload, WorkloadKind
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.space.space import space_of
from tuner.errors import TunerError

from .rows import BANDWIDTH, Row, Variant, tiling_of

#: Columns of each model's residual stream, which the projection writes.
WIDTHS = {"llama3-8b": 4096, "llama3-70b-tp8": 8192}
#: Of attention CTAs that leave room for the launch behind: warps that multiply, warps that end tasks, stages. The first
#: has an SM for itself.
_WARPS_AND_STAGES = ((8, 4, 16), (4, 2, 3), (4, 2, 2), (8, 4, 2))
#: Tilings of the projection that are tried, the best by forecast: of CTAs that are alone, and of those that share k.
_NUM_ALONE, _NUM_SHARING = 2, 1
#: Who asks the L2 for weights early: nobody, the projection's CTAs at their start (stages beyond the ring), or the
#: attention launch when it has requested all of its own (a share of each row).
_AHEAD = ((False, 0.0), (True, 0.0), (False, 1.0))
#: Cluster, spans of the longest context, and whether queues are neighbours: what was fastest for attention alone
#: (docs/findings/attention.md).
_SPREADS = {
    "llama3-8b/1/512": (8, 1, False),
    "llama3-8b/1/2048": (8, 1, False),
    "llama3-8b/1/8192": (8, 1, False),
    "llama3-8b/64/2048": (1, 1, True),
    "llama3-8b/64/8192": (1, 1, True),
    "llama3-8b/16/1-4096": (2, 1, False),
    "llama3-70b-tp8/1/512": (8, 1, False),
    "llama3-70b-tp8/1/2048": (16, 1, False),
    "llama3-70b-tp8/1/8192": (8, 8, False),
    "llama3-70b-tp8/16/512": (4, 1, False),
    "llama3-70b-tp8/16/2048": (2, 4, False),
    "llama3-70b-tp8/16/8192": (4, 1, False),
    "llama3-70b-tp8/64/512": (2, 1, False),
    "llama3-70b-tp8/64/2048": (2, 1, False),
    "llama3-70b-tp8/64/8192": (2, 1, False),
    "llama3-70b-tp8/16/1-4096": (8, 1, True),
}
_OTHER_SPREAD = (1, 1, False)


@dataclass(frozen=True, kw_only=True)
class PairVariant:
    """Two launches: attention, then the projection."""

    attention: Variant
    projection: Schedule
    #: Of the projection's weights, what the attention launch brings into the L2: the beginning of each row.
    next_share: float
    #: Whether each launch may begin while the one before it ends.
    programmatic: bool

    def __str__(self) -> str:
        ahead = f", {self.next_share:.0%} of the weights asked for" if self.next_share else ""
        return f"{self.attention}{ahead} | {self.projection.tiling}{'' if self.programmatic else ' plain'}"


def projection_of(row: Row) -> Workload:
    """The op behind the row's attention; its A is what attention writes, a row for each new token."""
    op = row.op
    heads = op.kv_heads * op.query_heads * op.head_dim
    gemm = GemmOp(name="o_proj", m=op.sequences * op.new_tokens, n=WIDTHS[row.model], k=heads, source="attention")
    return Workload(kind=WorkloadKind.CHAIN, ops=(gemm,), dtype=op.dtype)


def floor_us(row: Row) -> float:
    """Keys, values and weights, read once."""
    return (row.kv_bytes + projection_of(row).weight_bytes) / BANDWIDTH * 1e6


def attention_variants(row: Row) -> list[Variant]:
    """One that has an SM for itself, and some that leave room for the launch behind."""
    op = row.op
    cluster, spans, contiguous = _SPREADS.get(row.name, _OTHER_SPREAD)
    tile = 64
    while tile > 16 and cluster * tile * spans > max(op.max_length, 16 * cluster * spans):
        tile //= 2
    share = cluster * tile
    span_tokens = -(-op.max_length // (spans * share)) * share

    def variant(warps: int, finish_warps: int, stages: int) -> Variant:
        tiling = tiling_of(
            tile,
            warps=max(warps, tile // 16),
            stages=stages,
            queries=op.columns,
            cluster=cluster,
            finish_warps=finish_warps,
        )
        return Variant(tiling=tiling, span_tokens=span_tokens, contiguous=contiguous, speculative=True)

    first, *others = _WARPS_AND_STAGES
    own_tiles = -(-min(span_tokens, op.max_length) // share)
    beside = [
        variant(warps, finish, max(min(stages, own_tiles), warps // (tile // 16))) for warps, finish, stages in others
    ]
    return list(dict.fromkeys((variant(*first), *beside)))


def schedule_of(tiling: Tiling) -> Schedule:
    """One op: its tiles are dealt to the CTAs row by row."""
    return Schedule(tiling=tiling, ordering=Ordering(rasters=(Raster(),), assignment=Assignment.STATIC))


def projection_tilings(workload: Workload, gpu: Gpu) -> list[Tiling]:
    """Of the engine that streams weights by the copy engine, with one warpgroup that multiplies: what is forecast to be
    fastest, of CTAs that are alone and of those that share k."""
    found: list[tuple[float, str, Tiling]] = []
    for tiling in space_of(workload, gpu).guesses:
        if tiling.engine is not Engine.WGMMA or tiling.num_warps != 4:
            continue
        plain = replace(tiling, window=0)
        found.append((forecast_us(workload, gpu, fused(schedule_of(plain))), str(plain), plain))
    found.sort(key=lambda item: item[:2])
    alone = [tiling for _, _, tiling in found if tiling.cluster_k == 1]
    sharing = [tiling for _, _, tiling in found if tiling.cluster_k > 1]
    return alone[:_NUM_ALONE] + sharing[:_NUM_SHARING]


def fitted(workload: Workload, gpu: Gpu, tiling: Tiling, most_smem_bytes: int) -> Tiling | None:
    """With rings that take no more shared memory: the inputs' gives way first."""
    for input_stages in range(tiling.input_stages, 1, -1):
        for num_stages in range(tiling.num_stages, 3, -1):
            shorter = replace(tiling, input_stages=input_stages, num_stages=num_stages)
            if dynamic_smem_bytes(workload, shorter) > most_smem_bytes:
                continue
            if input_stages > 2 and num_stages < tiling.num_stages * 2 // 3:
                break  # fewer inputs first
            return shorter if tiling_problem(workload, gpu, shorter) is None else None
    return None


def _prefetched(workload: Workload, gpu: Gpu, tiling: Tiling) -> Schedule:
    """With the most stages beyond the ring that a task has; without any where the ring holds all of it."""
    for stages in sorted(STARTUP_PREFETCHES, reverse=True):
        schedule = schedule_of(replace(tiling, startup_prefetch=stages))
        if space_of(workload, gpu).is_legal(schedule):
            return schedule
    return schedule_of(tiling)


def pair_variants(row: Row, gpu: Gpu) -> list[PairVariant]:
    """All that are tried. An attention kernel that fills an SM goes before a projection that does; it is launched
    plainly too. One that does not goes before a projection that fits beside it.

    Raises:
        TunerError: no schedule of the projection is there.
    """
    workload, found = projection_of(row), []
    tilings = projection_tilings(workload, gpu)
    for place, attention in enumerate(attention_variants(row)):
        left = gpu.smem_per_sm_bytes - attention.tiling.smem_bytes - 2 * SMEM_RESERVED_PER_CTA_BYTES
        most = gpu.smem_per_cta_bytes if place == 0 else left
        fitting = [
            shorter
            for tiling in tilings
            if (shorter := fitted(workload, gpu, tiling, min(most, gpu.smem_per_cta_bytes)))
        ]
        for shorter, (is_at_start, share), programmatic in product(
            fitting, _AHEAD, (True, False) if place == 0 else (True,)
        ):
            projection = _prefetched(workload, gpu, shorter) if is_at_start else schedule_of(shorter)
            found.append(
                PairVariant(
                    attention=replace(attention, programmatic=programmatic),
                    projection=projection,
                    next_share=share,
                    programmatic=programmatic,
                )
            )
    if not found:
        raise TunerError(f"no schedule of {workload.describe()} fits {gpu.name}")
    return list(dict.fromkeys(found))
