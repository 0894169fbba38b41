"""A chain with the toy tile op between two products, for processes that have the toy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.core.problem.workload import Workload
from tuner.core.schedule.levels import TileOpSchedule, schedule_class
from tuner.core.schedule.tiling import Engine, Tile, Tiling


def chain(*, m: int = 40, length: int = 20, taps: int = 5, n: int = 72, dtype: str = "fp16") -> Workload:
    """up [m, n] with 64 columns, its depthwise convolution, and down [m, 32], which reads that."""
    up: Mapping[str, Any] = {"name": "up", "m": m, "n": n, "k": 64, "source": "x", "activation": "silu", "bias": False}
    conv = {"op": "depthwise", "name": "conv", "m": m, "n": n, "length": length, "taps": taps, "source": "up"}
    down = up | {"name": "down", "n": 32, "k": n, "source": "conv", "activation": "identity"}
    return Workload.from_json({"kind": "chain", "ops": [up, conv, down], "dtype": dtype})


def tiling(engine: Engine, *tiles: tuple[int, int, int], rows_at_once: int = 1) -> Tiling:
    """Two stages, four warps, and the toy's own axis."""
    whole = tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles)
    kind: Any = schedule_class("depthwise")
    chosen: TileOpSchedule = kind(tile=Tile(m=1, n=1, k=1), rows_at_once=rows_at_once)
    plain = Tiling(engine=engine, tiles=whole, num_stages=2, num_warps=4)
    return replace(plain, of_kinds=(None, chosen, None))
