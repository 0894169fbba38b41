"""Schedules of a chain whose CTAs leave room on their SMs for those of the next programmatic launch.

With a ring that takes a whole SM the next launch's CTA begins when this one's has ended, and its first weights are
asked for then. With half of that it lies beside this one from the start, and its ring is full when this launch ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tuner.core.legal.legality import dynamic_smem_bytes
from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.problem.workload import WorkloadKind
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.core.space.attention import AnySpace
from tuner.core.space.space import Space
from tuner.search.rings import depths

#: A stage has at least so many columns.
_LEAST_COLUMNS = 64
#: Rings are as large where they differ by less.
_ABOUT_BYTES = 8192


def beside_next(space: AnySpace, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Fused schedules of a chain with rings of half an SM, in stages as deep as their own and half as deep; none where
    there is an attention."""
    if not isinstance(space, Space) or space.workload.kind is not WorkloadKind.CHAIN:
        return []
    deep = (replace(one, tiling=tiling) for one in schedules for tiling in _stages(one.tiling))
    tilings = ((one, in_half_an_sm(space, one.tiling)) for one in deep if one.tiling.engine is Engine.WGMMA)
    halves = (replace(one, tiling=tiling) for one, tiling in tilings if tiling is not None)
    return [half for half in halves if space.is_legal(half)]


def in_half_an_sm(space: Space, tiling: Tiling) -> Tiling | None:
    """The tiling with rings that share half an SM about as they shared one; itself where it takes no more; None where
    none are legal."""
    most_bytes = space.gpu.smem_per_sm_bytes // 2 - SMEM_RESERVED_PER_CTA_BYTES
    share = tiling.input_stages / tiling.num_stages

    def fit(one: Tiling) -> tuple[int, float]:
        size = dynamic_smem_bytes(space.workload, one) // _ABOUT_BYTES
        return size, -abs(one.input_stages / one.num_stages - share)

    fitting = (
        one
        for one in depths(space.workload, space.gpu, tiling)
        if dynamic_smem_bytes(space.workload, one) <= most_bytes
    )
    return max(fitting, key=fit, default=None)


def _stages(tiling: Tiling) -> Iterator[Tiling]:
    """No window holds weights back; stages of all ops as deep, and half as deep in twice as many."""
    tiling = replace(tiling, window=0, ahead_window=0)
    yield tiling
    if min(tile.k for tile in tiling.tiles) > _LEAST_COLUMNS:
        tiles = tuple(replace(tile, k=tile.k // 2) for tile in tiling.tiles)
        num_stages, input_stages = 2 * tiling.num_stages, 2 * tiling.input_stages
        yield replace(tiling, tiles=tiles, num_stages=num_stages, input_stages=input_stages)
