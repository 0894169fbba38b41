"""What is tried of an attention and its projection in one launch, at each row.

Two of the ways to share an SM. Roles by CTA: an SM holds two CTAs, and each attends or projects. Roles by warp: an SM
holds one CTA, which has warps and a ring for each. CTAs of the role whose blocks come first find room first beside a
launch that still runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.core.schedule.tiling import Tiling
from tuner.search.attention_beside import fitted

from .pair_rows import (
    _MORE_SPREADS,
    _OTHER_SPREAD,
    _SPREADS,
    _attention,
    _prefetched,
    _windowed,
    projection_of,
    projection_tilings,
)
from .rows import Row, Variant

#: Of an attention's warps: those that multiply, and those that end tasks. With the one that requests they are eight.
_MATH_WARPS, _FINISH_WARPS = 4, 3
#: Spreads that are tried where there are too few that are known: CTAs of a cluster, and spans of the longest context.
_SPREADS_BY_SIZE = ((4, 1), (2, 4), (2, 1), (1, 1), (8, 4), (4, 8), (4, 4), (1, 4), (1, 8), (8, 1))
#: CTAs that attend: at most, and where a spread has fewer, others stand before it.
_MOST_ATTENDING, _ENOUGH_ATTENDING = 264, 32
#: Spreads of a row, and tilings of its projection, that are tried.
_NUM_SPREADS, _NUM_TILINGS = 3, 2
#: Of the weights: the projection's ring, and which share of each row those that attend ask the L2 for.
_AHEAD = (("window", 0.0), ("window", 0.25), ("window", 0.5), ("whole ring", 0.0), ("and the L2", 0.0))
_NUM_AHEAD = (len(_AHEAD), 2)
#: Clusters of a size that two CTAs an SM, or one, leave room for.
_MOST_CTAS = {1: 132, 2: 132, 4: 120, 8: 112}


class Roles(StrEnum):
    """Who attends and who projects."""

    #: Two CTAs an SM, of which the first blocks attend.
    CTAS_ATTENTION_FIRST = "CTAs, attention first"
    #: Two CTAs an SM, of which the first blocks project.
    CTAS_PROJECTION_FIRST = "CTAs, projection first"
    #: One CTA an SM, with warps of both.
    WARPS = "warps"

    @property
    def ctas_per_sm(self) -> int:
        """As the kernel is compiled for."""
        return 1 if self is Roles.WARPS else 2


@dataclass(frozen=True, kw_only=True)
class OneVariant:
    """What runs in one launch."""

    attention: Variant
    projection: Tiling
    roles: Roles
    #: Clusters that attend, at most.
    most_clusters: int
    #: Whether a step of the projection waits for the heads that it reads, or a task for all.
    by_head: bool
    #: Of each row of the weights, what those that attend bring into the L2 before the launch before has ended.
    share: float

    def __str__(self) -> str:
        waits = "waits for each head" if self.by_head else "waits for all heads"
        asked = f", {self.share:.0%} of the weights asked for early" if self.share else ""
        return (
            f"{self.attention}{asked} | {self.projection} | {self.roles}, {self.most_clusters} clusters attend, {waits}"
        )


def aligned(num_bytes: int) -> int:
    """Whole repeats of the copy engine's swizzle."""
    return -(-num_bytes // 1024) * 1024


def one_variants(row: Row, gpu: Gpu) -> list[OneVariant]:
    """Of all roles, spreads of the context, and tilings of the projection."""
    return list(dict.fromkeys(_one_variants(row, gpu)))


def _one_variants(row: Row, gpu: Gpu) -> Iterator[OneVariant]:
    for roles in Roles:
        for attention in _attentions(row, gpu, roles):
            cluster = attention.tiling.cluster
            most = roles.ctas_per_sm * _MOST_CTAS[cluster]
            for base, num_ahead in zip(_tilings(row, gpu, roles, attention), _NUM_AHEAD, strict=False):
                projecting = min(_num_tiles(row, base), _MOST_CTAS[cluster]) if roles is not Roles.WARPS else 0
                clusters = (most - -(-projecting // cluster) * cluster) // cluster
                for ring, share in _AHEAD[:num_ahead]:
                    has_heads = row.op.kv_heads > 1
                    for by_head in (True, False) if has_heads and not share and ring == "window" else (has_heads,):
                        yield OneVariant(
                            attention=attention,
                            projection=_with_ring(row, gpu, base, ring),
                            roles=roles,
                            most_clusters=min(clusters, _num_tasks(row, attention)),
                            by_head=by_head,
                            share=share,
                        )


def _with_ring(row: Row, gpu: Gpu, tiling: Tiling, ring: str) -> Tiling:
    workload = projection_of(row)
    if ring == "window":
        return _windowed(workload, tiling)
    return _prefetched(workload, gpu, tiling).tiling if ring == "and the L2" else tiling


def _num_tiles(row: Row, tiling: Tiling) -> int:
    op, tile = projection_of(row).ops[0], tiling.cta_tiles[0]
    return -(-op.m // tile.m) * -(-op.n // tile.n)


def _num_tasks(row: Row, attention: Variant) -> int:
    spans = -(-row.op.max_length // attention.span_tokens)
    return row.op.sequences * row.op.kv_heads * spans


def _attentions(row: Row, gpu: Gpu, roles: Roles) -> list[Variant]:
    """With the spreads that are fastest in a launch of its own, then with others."""
    slots, ragged = row.op.sequences * row.op.kv_heads, set(row.lengths) != {row.op.max_length}
    known = [_SPREADS.get(row.name, _OTHER_SPREAD), *_MORE_SPREADS.get(row.name, ())]
    others = [(cluster, spans, False) for cluster, spans in _SPREADS_BY_SIZE]
    others.sort(key=lambda spread: slots * spread[0] * spread[1] < _ENOUGH_ATTENDING)
    found: list[Variant] = []
    for spread in dict.fromkeys([*known, *others]):
        cluster, spans, _ = spread
        fits = 8 <= slots * cluster * spans <= _MOST_ATTENDING and 16 * cluster * spans <= row.op.max_length
        if cluster > (2 if roles is Roles.WARPS else 8) or (not fits and spread not in known):
            continue
        for stages in (3, 2, 1):
            one = _attention(row, spread, _MATH_WARPS, _FINISH_WARPS, stages)
            if ragged and cluster == 1:
                one = replace(one, by_length=True, speculative=False)
            if one.tiling.smem_bytes <= _room(gpu, roles) // (2 if roles is Roles.WARPS else 1):
                found.append(one)
                break
    return list(dict.fromkeys(found))[:_NUM_SPREADS]


def _room(gpu: Gpu, roles: Roles) -> int:
    if roles is Roles.WARPS:
        return gpu.smem_per_cta_bytes
    return gpu.smem_per_sm_bytes // 2 - SMEM_RESERVED_PER_CTA_BYTES


def _tilings(row: Row, gpu: Gpu, roles: Roles, attention: Variant) -> list[Tiling]:
    """Of the projection, with rings as deep as there is room; first those that give each CTA one tile."""
    workload = projection_of(row)
    room = _room(gpu, roles) - (aligned(attention.tiling.smem_bytes) if roles is Roles.WARPS else 0)
    whole = [one for one in projection_tilings(workload, gpu) if one.cluster_k == 1 and one.num_parts(0) == 1]
    whole.sort(key=lambda one: _num_tiles(row, one) > gpu.num_sms)
    found = [shorter for one in whole if (shorter := fitted(workload, gpu, one, room))]
    return found[:_NUM_TILINGS]
