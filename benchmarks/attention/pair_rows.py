"""What is tried of the pair attention -> projection at each row: an attention kernel, then a GEMM of our engine.

A launch may begin while the one before it ends, where an SM has room for both. So attention kernels of a few stages
stand beside projections whose rings leave room for them: for one CTA of the projection, or for two, so that the next
pair's weights arrive while this one's projection ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tuner.core.legal.wgmma import STARTUP_PREFETCHES, stage_bytes
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.space.space import space_of
from tuner.errors import TunerError
from tuner.ops.gemm.op import GemmOp
from tuner.search.guesses.rings import fitted

from .rows import BANDWIDTH, Row, Variant, fitting, tiling_of

#: Columns of each model's residual stream, which the projection writes.
WIDTHS = {"llama3-8b": 4096, "llama3-70b-tp8": 8192}
#: Of attention CTAs: warps that multiply, warps that end tasks, stages. The last one's
#: eight warps leave registers for two CTAs of a projection. The first two have a ring that leaves no room.
_WARPS_AND_STAGES = ((8, 4, 16), (4, 4, 16), (4, 4, 2), (4, 4, 3), (4, 3, 2))
#: Stages of a ring that leaves no room beside it.
_DEEP_STAGES = 4
#: Tilings of the projection that are tried, the best by forecast: of CTAs that are alone, and of those that share k.
_NUM_ALONE, _NUM_SHARING = 2, 1
#: Bytes of weights that a CTA has under way at most, so that keys and values do not stand behind a whole ring of them.
_WINDOW_BYTES = 49_152
#: Of a projection that has an SM for itself: whether its CTAs ask the L2 at their start for stages beyond the ring, and
#: what the attention launch asks the L2 for (a share of each row of the weights), and whether early.
_AHEAD = (
    (False, 0.0, False),
    (True, 0.0, False),
    (False, 0.25, False),
    (False, 0.5, False),
    (False, 0.75, False),
    (False, 1.0, False),
    (False, 0.5, True),
)
#: Of a projection beside attention: CTAs of it that an SM has room for, whether there is a window, and whether its CTAs
#: ask the L2 for stages beyond the ring.
_BESIDE = ((1, False, False), (1, True, False), (1, True, True), (2, False, False), (2, True, False))
#: Shares of the weights that an attention launch beside it asks for early.
_EARLY_SHARES = (0.25, 0.5, 1.0)
#: Cluster, spans of the longest context, and whether queues are neighbours: what was fastest for attention alone
#: (docs/findings/attention.md).
_SPREADS: dict[str, tuple[int, int, bool]] = {
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
#: Others that are tried: over more SMs where the fastest one leaves some without a CTA, or with fewer spans to add up.
_MORE_SPREADS: dict[str, tuple[tuple[int, int, bool], ...]] = {
    "llama3-8b/1/2048": ((2, 8, False), (16, 1, False), (4, 4, False)),
    "llama3-8b/1/8192": ((2, 8, False), (16, 1, False), (4, 4, False)),
    "llama3-8b/16/512": ((2, 1, False),),
    "llama3-70b-tp8/1/8192": ((16, 1, False), (16, 4, False), (4, 16, False)),
    "llama3-70b-tp8/16/2048": ((8, 1, False), (4, 2, False)),
    "llama3-70b-tp8/16/8192": ((2, 4, False), (8, 1, False)),
    "llama3-70b-tp8/16/1-4096": ((8, 1, False), (4, 1, False)),
}
#: Where lengths differ: spans that a launch assigns by the lengths.
_LENGTH_SPREADS: dict[str, tuple[tuple[int, int, bool], ...]] = {
    "llama3-8b/16/1-4096": ((2, 1, False), (2, 4, False), (1, 8, False)),
    "llama3-70b-tp8/16/1-4096": ((1, 13, False), (1, 8, False)),
}


@dataclass(frozen=True, kw_only=True)
class PairVariant:
    """Two launches: attention, then the projection."""

    attention: Variant
    projection: Schedule
    #: Whether each launch may begin while the one before it ends.
    programmatic: bool
    #: Of the projection's weights, what the attention launch brings into the L2: the beginning of each row.
    next_share: float = 0.0
    #: Whether it asks for these before the launch before has ended; else when the last of a CTA's tiles is there.
    next_early: bool = False
    #: Whether an SM gives all that it can to shared memory, so that CTAs of both launches may be there together.
    shares_sms: bool = True

    def __str__(self) -> str:
        when = " early" if self.next_early else ""
        flags = [f"{self.next_share:.0%} of the weights asked for{when}"] if self.next_share else []
        flags += [] if self.shares_sms else ["default carve-out"]
        asked = "".join(f", {flag}" for flag in flags)
        return f"{self.attention}{asked} | {self.projection.tiling}{'' if self.programmatic else ' plain'}"


def projection_of(row: Row) -> Workload:
    """The op behind the row's attention; its A is what attention writes, a row for each new token."""
    op = row.op
    heads = op.kv_heads * op.query_heads * op.head_dim
    gemm = GemmOp(name="o_proj", m=op.sequences * op.new_tokens, n=WIDTHS[row.model], k=heads, source="attention")
    return Workload(kind=WorkloadKind.CHAIN, ops=(gemm,), dtype=op.dtype)


def floor_us(row: Row, bytes_per_s: float = BANDWIDTH) -> float:
    """Keys, values and weights, read once."""
    return (row.kv_bytes + projection_of(row).weight_bytes) / bytes_per_s * 1e6


def attention_variants(row: Row) -> list[Variant]:
    """Some that have an SM for themselves, and some that leave room for the launch behind."""
    name = row.name.partition("/pages")[0]
    spread = _SPREADS.get(name, _OTHER_SPREAD)
    found = [_attention(row, spread, *of) for of in _WARPS_AND_STAGES]
    found += [_attention(row, one, *of) for one in _MORE_SPREADS.get(name, ()) for of in _WARPS_AND_STAGES[:-1]]
    for assigned in _LENGTH_SPREADS.get(name, ()):
        found += [fitting(row, replace(_attention(row, assigned, *of), by_length=True)) for of in _WARPS_AND_STAGES]
    return list(dict.fromkeys(found))


def _attention(row: Row, spread: tuple[int, int, bool], warps: int, finish_warps: int, stages: int) -> Variant:
    """With no more stages than a CTA has tiles of the longest context."""
    op, (cluster, spans, contiguous) = row.op, spread
    tile = 64
    while tile > 16 and cluster * tile * spans > max(op.max_length, 16 * cluster * spans):
        tile //= 2
    share = cluster * tile
    span_tokens = -(-op.max_length // (spans * share)) * share
    own_tiles, teams = -(-min(span_tokens, op.max_length) // share), warps // (tile // 16)
    tiling = tiling_of(
        tile,
        warps=max(warps, tile // 16),
        stages=stages if stages == _WARPS_AND_STAGES[0][2] else max(min(stages, own_tiles), teams),
        queries=op.columns,
        cluster=cluster,
        finish_warps=finish_warps,
    )
    variant = Variant(tiling=tiling, span_tokens=span_tokens, contiguous=contiguous, speculative=True)
    return fitting(row, variant)


def schedule_of(tiling: Tiling) -> Schedule:
    """One op: its tiles are dealt to the CTAs row by row."""
    return Schedule.of(tiling=tiling, ordering=Ordering(rasters=(Raster(),), assignment=Assignment.STATIC))


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


def _prefetched(workload: Workload, gpu: Gpu, tiling: Tiling) -> Schedule:
    """With the most stages beyond the ring that a task has; without any where the ring holds all of it."""
    for stages in sorted(STARTUP_PREFETCHES, reverse=True):
        schedule = schedule_of(replace(tiling, startup_prefetch=stages))
        if space_of(workload, gpu).is_legal(schedule):
            return schedule
    return schedule_of(tiling)


def _windowed(workload: Workload, tiling: Tiling) -> Tiling:
    """With a window, where that is shorter than the ring."""
    window = max(1, round(_WINDOW_BYTES / stage_bytes(workload, tiling)[1]))
    return replace(tiling, window=window) if window < tiling.num_stages else tiling


def _alone(workload: Workload, gpu: Gpu, tilings: list[Tiling], attention: Variant) -> list[PairVariant]:
    """Launches of which each fills an SM, programmatic and plain."""
    found = []
    for tiling, (is_at_start, share, early), programmatic in product(tilings, _AHEAD, (True, False)):
        if early and not programmatic:
            continue  # there is no launch before that could still run
        found.append(
            PairVariant(
                attention=replace(attention, programmatic=programmatic),
                projection=_prefetched(workload, gpu, tiling) if is_at_start else schedule_of(tiling),
                next_share=share,
                next_early=early,
                programmatic=programmatic,
            )
        )
    return found


def _beside(workload: Workload, gpu: Gpu, tilings: list[Tiling], attention: Variant) -> list[PairVariant]:
    """Programmatic launches that have room beside each other on an SM."""
    left = gpu.smem_per_sm_bytes - attention.tiling.smem_bytes - SMEM_RESERVED_PER_CTA_BYTES
    found = []
    for tiling, (num_ctas, has_window, is_at_start) in product(tilings, _BESIDE):
        most = min(left // num_ctas - SMEM_RESERVED_PER_CTA_BYTES, gpu.smem_per_cta_bytes)
        if (shorter := fitted(workload, gpu, tiling, most)) is None:
            continue
        chosen = _windowed(workload, shorter) if has_window else shorter
        projection = _prefetched(workload, gpu, chosen) if is_at_start else schedule_of(chosen)
        one = PairVariant(attention=attention, projection=projection, programmatic=True)
        found.append(one)
        if not is_at_start and num_ctas == 1:
            found += [replace(one, next_share=share, next_early=True) for share in _EARLY_SHARES]
    return found


def pair_variants(row: Row, gpu: Gpu) -> list[PairVariant]:
    """All that are tried; one of them a second time, with the shared memory that the driver chooses.

    Raises:
        TunerError: no schedule of the projection is there.
    """
    workload = projection_of(row)
    tilings = projection_tilings(workload, gpu)
    attentions = attention_variants(row)
    deep = [one for one in attentions if one.tiling.num_stages >= _DEEP_STAGES]
    shallow = [one for one in attentions if one.tiling.num_stages < _DEEP_STAGES]
    whole = [fits for tiling in tilings if (fits := fitted(workload, gpu, tiling, gpu.smem_per_cta_bytes))]
    beside = [variant for attention in shallow for variant in _beside(workload, gpu, tilings, attention)]
    alone = [variant for attention in deep for variant in _alone(workload, gpu, whole, attention)]
    found = [*beside, *alone, *(replace(one, shares_sms=False) for one in beside[:1])]
    if not found:
        raise TunerError(f"no schedule of {workload.describe()} fits {gpu.name}")
    return list(dict.fromkeys(found))
