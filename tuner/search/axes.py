"""The axes of a schedule, twice: as an Optuna trial's parameters, and as numbers that a model can compare."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.levels import NO_ORDERING, NO_TILING
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Epilogue, Tile, Tiling, Warpgroups
from tuner.search.attention_axes import attention_distributions, attention_params, attentions_from_params

#: So few ops are not cut into runs.
MAX_UNCUT_OPS = 2

Features = npt.NDArray[np.float64]


def _choices(kind: Any) -> CategoricalDistribution:
    return CategoricalDistribution([str(value) for value in kind])


def _boundaries(num_ops: int) -> range:
    """Ops at which a run of a chain may begin; pairs are not cut."""
    return range(1, num_ops if num_ops > MAX_UNCUT_OPS else 1)


def distributions(num_ops: int, num_attentions: int = 0) -> dict[str, BaseDistribution]:
    """The parameters of a trial, of so many products and attentions; wide enough for every schedule, since legality is
    the pool's business."""
    axes: dict[str, BaseDistribution] = _product_distributions(num_ops) if num_ops else {}
    for attention in range(num_attentions):
        axes |= attention_distributions(attention)
    return axes


def _product_distributions(num_ops: int) -> dict[str, BaseDistribution]:
    axes: dict[str, BaseDistribution] = {
        "engine": _choices(Engine),
        "num_stages": IntDistribution(2, 64),
        "num_warps": IntDistribution(1, 32),
        "input_stages": IntDistribution(0, 64),
        "window": IntDistribution(0, 64),
        "ahead_window": IntDistribution(0, 64),
        "startup_prefetch": IntDistribution(0, 64),
        "warpgroups": _choices(Warpgroups),
        "swap_ab": CategoricalDistribution([False, True]),
        "in_band": CategoricalDistribution([False, True]),
        "epilogue": _choices(Epilogue),
        "cluster_m": IntDistribution(1, 16),
        "cluster_n": IntDistribution(1, 16),
        "cluster_k": IntDistribution(1, 16),
        "resident_ctas": IntDistribution(1, 32),
        "weight_hint": _choices(CacheHint),
        "intermediate_hint": _choices(CacheHint),
        "interleave": _choices(InterleaveKind),
        "band_rows": IntDistribution(0, 2**31),
        "band_lag": IntDistribution(0, 2**31),
        "column_chunks": IntDistribution(1, 2**31),
        "granularity": _choices(Granularity),
        "wait_position": _choices(WaitPosition),
        "run_ahead": IntDistribution(0, 100),
        "assignment": _choices(Assignment),
        "ctas_per_sm": IntDistribution(1, 32),
        "reserved_sms": IntDistribution(0, 1024),
        "sync_width": IntDistribution(1, 2**31),
        "partition": IntDistribution(0, 7),
        "part_major": CategoricalDistribution([False, True]),
        "split_order": _choices(SplitOrder),
        "split_tiles": _choices(SplitTiles),
    }
    for op in range(num_ops):
        axes |= {f"tile_{axis}_{op}": IntDistribution(1, 4096) for axis in "mnk"}
        axes |= {f"split_k_{op}": IntDistribution(1, 64)}
        axes |= {f"raster_{op}": _choices(RasterKind), f"raster_width_{op}": IntDistribution(1, 2**31)}
    axes |= {f"begins_run_{op}": CategoricalDistribution([False, True]) for op in _boundaries(num_ops)}
    return axes


def to_params(schedule: Schedule) -> dict[str, Any]:
    """A schedule as a trial's parameters; `from_params` is its inverse."""
    params = _product_params(schedule) if schedule.tiling.tiles else {}
    for index, attention in enumerate(schedule.launch_ops):
        params |= attention_params(attention, index)
    return params


def _product_params(schedule: Schedule) -> dict[str, Any]:
    tiling, ordering = schedule.tiling, schedule.ordering
    params: dict[str, Any] = {
        "engine": str(tiling.engine),
        "num_stages": tiling.num_stages,
        "num_warps": tiling.num_warps,
        "input_stages": tiling.input_stages,
        "window": tiling.window,
        "ahead_window": tiling.ahead_window,
        "startup_prefetch": tiling.startup_prefetch,
        "warpgroups": str(tiling.warpgroups),
        "swap_ab": tiling.swap_ab,
        "in_band": tiling.in_band,
        "epilogue": str(tiling.epilogue),
        "cluster_m": tiling.cluster_m,
        "cluster_n": tiling.cluster_n,
        "cluster_k": tiling.cluster_k,
        "resident_ctas": tiling.resident_ctas,
        "weight_hint": str(tiling.weight_hint),
        "intermediate_hint": str(tiling.intermediate_hint),
        "interleave": str(ordering.interleave.kind),
        "band_rows": ordering.interleave.rows,
        "band_lag": ordering.interleave.lag,
        "column_chunks": ordering.interleave.chunks,
        "granularity": str(ordering.granularity),
        "wait_position": str(ordering.wait_position),
        "run_ahead": ordering.run_ahead,
        "assignment": str(ordering.assignment),
        "ctas_per_sm": ordering.ctas_per_sm,
        "reserved_sms": ordering.reserved_sms,
        "sync_width": ordering.sync_width,
        "partition": ordering.partition,
        "part_major": ordering.part_major,
        "split_order": str(ordering.split_order),
        "split_tiles": str(ordering.split_tiles),
    }
    for op, (tile, raster) in enumerate(zip(tiling.tiles, ordering.rasters, strict=True)):
        params |= {f"tile_m_{op}": tile.m, f"tile_n_{op}": tile.n, f"tile_k_{op}": tile.k}
        params[f"split_k_{op}"] = tiling.num_parts(op)
        params |= {f"raster_{op}": str(raster.kind), f"raster_width_{op}": raster.width}
    params |= {f"begins_run_{op}": op in ordering.run_starts for op in _boundaries(len(tiling.tiles))}
    return params


def from_params(params: dict[str, Any]) -> Schedule:
    """Inverse of `to_params`."""
    attentions = attentions_from_params(params)
    if "tile_m_0" not in params:
        return Schedule.of(tiling=NO_TILING, ordering=NO_ORDERING, launch_ops=attentions)
    return _product_from_params(params).but(launch_ops=attentions)


def _product_from_params(params: dict[str, Any]) -> Schedule:
    ops = range(sum(name.startswith("tile_m_") for name in params))
    tiles = tuple(Tile(m=params[f"tile_m_{op}"], n=params[f"tile_n_{op}"], k=params[f"tile_k_{op}"]) for op in ops)
    parts = tuple(params[f"split_k_{op}"] for op in ops)
    rasters = tuple(Raster(kind=RasterKind(params[f"raster_{op}"]), width=params[f"raster_width_{op}"]) for op in ops)
    return Schedule.of(
        tiling=Tiling(
            engine=Engine(params["engine"]),
            tiles=tiles,
            num_stages=params["num_stages"],
            num_warps=params["num_warps"],
            input_stages=params["input_stages"],
            window=params["window"],
            ahead_window=params["ahead_window"],
            startup_prefetch=params["startup_prefetch"],
            warpgroups=Warpgroups(params["warpgroups"]),
            swap_ab=params["swap_ab"],
            in_band=params["in_band"],
            epilogue=Epilogue(params["epilogue"]),
            cluster_m=params["cluster_m"],
            cluster_n=params["cluster_n"],
            cluster_k=params["cluster_k"],
            split_k=parts if max(parts) > 1 else (),
            resident_ctas=params["resident_ctas"],
            weight_hint=CacheHint(params["weight_hint"]),
            intermediate_hint=CacheHint(params["intermediate_hint"]),
        ),
        ordering=Ordering(
            rasters=rasters,
            interleave=Interleave(
                kind=InterleaveKind(params["interleave"]),
                rows=params["band_rows"],
                lag=params["band_lag"],
                chunks=params["column_chunks"],
            ),
            granularity=Granularity(params["granularity"]),
            wait_position=WaitPosition(params["wait_position"]),
            run_ahead=params["run_ahead"],
            assignment=Assignment(params["assignment"]),
            ctas_per_sm=params["ctas_per_sm"],
            reserved_sms=params["reserved_sms"],
            sync_width=params["sync_width"],
            partition=params["partition"],
            part_major=params["part_major"],
            split_order=SplitOrder(params["split_order"]),
            split_tiles=SplitTiles(params["split_tiles"]),
            run_starts=tuple(op for op in _boundaries(len(tiles)) if params[f"begins_run_{op}"]),
        ),
    )


def tiling_features(tiling: Tiling, workload: Workload, gpu: Gpu) -> list[float]:
    """Sizes in powers of two, and how well each op's tiles fill the last wave: what a tiling's speed hangs on. Nothing
    of a tiling without tiles."""
    if not tiling.tiles:
        return []
    features = [float(tiling.engine is engine) for engine in (Engine.WGMMA, Engine.SIMT)]
    features += [math.log2(tiling.num_warps), math.log2(tiling.num_stages)]
    features += [math.log2(max(1, tiling.input_stages)), (tiling.window or tiling.num_stages) / tiling.num_stages]
    features += [float(tiling.warpgroups is Warpgroups.PING_PONG), float(tiling.swap_ab)]
    features += [0.5 * (tiling.epilogue is Epilogue.TMA), 0.2 * math.log2(1 + tiling.startup_prefetch)]
    features += [0.5 * tiling.in_band, (tiling.ahead_window or tiling.num_stages) / tiling.num_stages]
    features += [math.log2(edge) for edge in (tiling.cluster_m, tiling.cluster_n, tiling.cluster_k)]
    features.append(float(tiling.resident_ctas))
    given = (hint for hint in CacheHint if hint is not CacheHint.DEFAULT)
    features += [0.5 * (asked is hint) for hint in given for asked in (tiling.weight_hint, tiling.intermediate_hint)]
    for index, (tile, op) in enumerate(zip(tiling.tiles, workload.tile_ops, strict=True)):
        num_parts = tiling.num_parts(index)
        waves = -(-op.m // tile.m) * -(-op.n // tile.n) * num_parts / gpu.num_clusters(tiling.cluster_size)
        features.append(math.log2(num_parts))
        features += [math.log2(size) for size in (tile.m, tile.n, tile.k)]
        features += [math.log2(math.ceil(waves) / waves), math.log2(-(-op.m // tile.m) * tile.m / op.m)]
    return features


def ordering_features(ordering: Ordering) -> list[float]:
    """One number per choice, on scales that make one step of each axis about as far as another's. Nothing of an
    ordering without rasters."""
    if not ordering.rasters:
        return []
    interleave = ordering.interleave
    features = [float(interleave.kind is kind) for kind in InterleaveKind if kind is not InterleaveKind.PRODUCER_FIRST]
    features += [0.3 * math.log2(1 + interleave.rows), 0.5 * math.log2(1 + interleave.lag)]
    features.append(0.5 * math.log2(interleave.chunks))
    features += [float(ordering.granularity is kind) for kind in Granularity if kind is not Granularity.ROW]
    features.append(0.3 * math.log2(ordering.sync_width))
    features += [0.5 * (ordering.wait_position is WaitPosition.SLICE), ordering.run_ahead / 100]
    features += [float(ordering.assignment is kind) for kind in Assignment if kind is not Assignment.TICKET]
    features += [ordering.partition / 4, float(ordering.ctas_per_sm), math.log2(1 + ordering.reserved_sms)]
    is_strided, is_tail = ordering.split_order is SplitOrder.STRIDED, ordering.split_tiles is not SplitTiles.ALL
    features += [0.5 * ordering.part_major, 0.5 * is_strided, 0.5 * is_tail]
    features.append(0.5 * (ordering.split_tiles is SplitTiles.STREAM))
    for raster in ordering.rasters:
        features += [0.7 * (raster.kind is kind) for kind in RasterKind]
        features.append(0.3 * math.log2(raster.width))
    features += [float(op in ordering.run_starts) for op in _boundaries(len(ordering.rasters))]
    return features
