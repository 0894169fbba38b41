"""Compact constructors for schedules of every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.cases import simt
from tests.support.on_card import schedule as portable
from tuner.core.legal.wgmma import STARTUP_PREFETCHES
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, Raster, RasterKind, WaitPosition
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Epilogue, Tile, Tiling, Warpgroups

__all__ = ["STARTUP_PREFETCHES", "by_copies", "dots", "in_turns", "portable", "prefetching", "swapped", "waved", "wide"]

Tiles = tuple[tuple[int, int, int], ...]

TICKET = Assignment.TICKET
#: Clusters of two and of four CTAs that split a tile's K.
TWO_SHARE_K, FOUR_SHARE_K = (1, 1, 2), (1, 1, 4)
#: Few CTAs on an H100 or H200, so that each has several tasks.
FEW_CTAS = {"reserved_sms": 120}
#: Waits before each slice of a task's k, only for the tiles of that slice.
BY_SLICE: dict[str, Any] = {"granularity": Granularity.TILE, "wait_position": WaitPosition.SLICE}
#: Assignments of tasks, by name.
ASSIGNMENTS: dict[str, dict[str, Any]] = {"static": {"assignment": Assignment.STATIC}, "ticket": {"assignment": TICKET}}


def wide(
    tiles: Tiles,
    *,
    stages: int = 4,
    input_stages: int = 3,
    split_k: tuple[int, ...] = (),
    window: int = 0,
    assignment: Assignment = Assignment.STATIC,
    raster: RasterKind = RasterKind.ROW,
    granularity: Granularity = Granularity.ROW,
    partition: int = 0,
    cluster: tuple[int, ...] = (1, 1),
    **ordering: Any,
) -> Schedule:
    """The wgmma engine, by default with static queues and row-major order."""
    rows = max(m for m, _, _ in tiles) // cluster[0]
    tiling = Tiling(
        engine=Engine.WGMMA,
        tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles),
        num_stages=stages,
        input_stages=input_stages,
        num_warps=4 if rows <= 64 else 8 if rows <= 128 or rows % 128 == 0 else 12,
        split_k=split_k,
        window=window,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        cluster_k=cluster[2] if len(cluster) > 2 else 1,
    )
    chosen = Ordering(
        rasters=(Raster(kind=raster),) * len(tiles),
        assignment=assignment,
        granularity=granularity,
        partition=partition,
        **ordering,
    )
    return Schedule.of(tiling=tiling, ordering=chosen)


def in_turns(tiles: Tiles, **fields: Any) -> Schedule:
    """The wgmma engine with two alternating teams, each with several tasks."""
    shared = wide(tiles, **{**FEW_CTAS, **fields})
    return shared.but(tiling=replace(shared.tiling, num_warps=8, warpgroups=Warpgroups.PING_PONG))


def swapped(
    tiles: Tiles, *, warps: int = 4, warpgroups: Warpgroups = Warpgroups.COOPERATIVE, **fields: Any
) -> Schedule:
    """The wgmma engine with the weights as operand A, on few CTAs."""
    shared = wide(tiles, **{**FEW_CTAS, **fields})
    return shared.but(tiling=replace(shared.tiling, num_warps=warps, warpgroups=warpgroups, swap_ab=True))


def by_copies(tiles: Tiles, *, ping_pong: bool = False, **fields: Any) -> Schedule:
    """The wgmma engine with tiles that the copy engine stores."""
    plain = (in_turns if ping_pong else wide)(tiles, **fields)
    return plain.but(tiling=replace(plain.tiling, epilogue=Epilogue.TMA))


def dots(*tiles: tuple[int, int, int], ordering: dict[str, Any] | None = None, **tiling: Any) -> Schedule:
    """The CUDA-core engine, by default with static queues and row-major order."""
    chosen = simt(*tiles, **tiling)
    plain = Ordering(rasters=(Raster(),) * len(chosen.tiles), assignment=Assignment.STATIC)
    return Schedule.of(tiling=chosen, ordering=replace(plain, **(ordering or {})))


def waved(chosen: Schedule, reserved_sms: int = 120) -> Schedule:
    """The first wave is assigned statically and the rest drawn; on few SMs, so that most tasks are drawn."""
    ordering = replace(chosen.ordering, assignment=Assignment.FIRST_WAVE, reserved_sms=reserved_sms)
    return chosen.but(ordering=ordering)


def prefetching(chosen: Schedule, stages: int = STARTUP_PREFETCHES[-1], **tiling: Any) -> Schedule:
    """Prefetches the weights of `stages` stages into the L2 at the start."""
    return chosen.but(tiling=replace(chosen.tiling, startup_prefetch=stages, **tiling))
