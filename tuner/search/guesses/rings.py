"""The depth of a tiling's rings, relative to the possible depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tuner.core.legal.legality import dynamic_smem_bytes, tiling_problem
from tuner.core.legal.wgmma import stage_bytes
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tiling


def is_full(workload: Workload, gpu: Gpu, tiling: Tiling) -> bool:
    """Whether the ring of weights is as deep as possible; if both rings have equal depth, whether both are."""
    return tiling_problem(workload, gpu, _deeper(tiling)) is not None


def deepest(workload: Workload, gpu: Gpu, tiling: Tiling) -> Tiling:
    """The tiling with the deepest possible ring of weights, and of inputs if both have equal depth."""
    while not is_full(workload, gpu, tiling):
        tiling = _deeper(tiling)
    return tiling


def with_deepest_weights(workload: Workload, gpu: Gpu, tiling: Tiling) -> Tiling:
    """The tiling with the deepest possible ring of weights, and the ring of inputs unchanged."""
    while tiling_problem(workload, gpu, more := replace(tiling, num_stages=tiling.num_stages + 1)) is None:
        tiling = more
    return tiling


def depths(workload: Workload, gpu: Gpu, tiling: Tiling) -> Iterator[Tiling]:
    """The legal tilings with as many stages as `tiling` or fewer, deepest first."""
    inputs = range(tiling.input_stages, 1, -1) if tiling.input_stages else (0,)
    by_depth = sorted(product(range(tiling.num_stages, 1, -1), inputs), key=sum, reverse=True)
    for num_stages, input_stages in by_depth:
        window = min(tiling.window, num_stages - 1)
        one = replace(tiling, num_stages=num_stages, input_stages=input_stages, window=window)
        if tiling_problem(workload, gpu, one) is None:
            yield one


def _deeper(tiling: Tiling) -> Tiling:
    """The tiling with one more stage, in both rings if they have equal depth."""
    more, is_even = tiling.num_stages + 1, tiling.num_stages == tiling.input_stages
    return replace(tiling, num_stages=more, input_stages=more if is_even else tiling.input_stages)


def fitted(workload: Workload, gpu: Gpu, tiling: Tiling, most_smem_bytes: int) -> Tiling | None:
    """The tiling with rings that take at most `most_smem_bytes`, reducing the ring of inputs first; None if none is
    legal.
    """
    for input_stages in range(tiling.input_stages, 1, -1):
        for num_stages in range(tiling.num_stages, 3, -1):
            shorter = replace(tiling, input_stages=input_stages, num_stages=num_stages)
            if dynamic_smem_bytes(workload, shorter) > most_smem_bytes:
                continue
            if input_stages > 2 and num_stages < tiling.num_stages * 2 // 3:
                break  # fewer inputs first
            return shorter if tiling_problem(workload, gpu, shorter) is None else None
    return None


def windowed(workload: Workload, gpu: Gpu, tiling: Tiling, window_bytes: int) -> Tiling:
    """The tiling with a window of about `window_bytes` bytes of weights, if that is legal and shorter than the ring."""
    window = max(1, round(window_bytes / stage_bytes(workload, tiling)[1]))
    if tiling.engine is not Engine.WGMMA or window >= tiling.num_stages:
        return tiling
    shorter = replace(tiling, window=window)
    return shorter if tiling_problem(workload, gpu, shorter) is None else tiling
