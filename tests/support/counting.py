"""Hardware counts and their expected values. Counts are taken in separate processes, because a process that has counted
must not time anything."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import TypeVar

from pebble import ProcessPool

from tuner.core.plan.graph.products import product_tile
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.reports.inspection import CounterReport
from tuner.workers.protocol.messages import CountAnswer, Work

T = TypeVar("T")


#: Seconds after which such a process is killed.
DEADLINE_S = 100.0


def apart(function: Callable[..., T], *args: object) -> T:
    """Runs `function(*args)` in a fresh process.

    Raises:
        TimeoutError: it was killed at its deadline.
    """
    with ProcessPool(1, context=get_context("spawn")) as pool:
        result: T = pool.schedule(function, args=args, timeout=DEADLINE_S).result()
        return result


def count_copy(num_bytes: int, metrics: tuple[str, ...]) -> CounterReport:
    """Counts a kernel that reads `num_bytes` and writes as many, after a read of 256 MiB."""
    import cupy

    from tuner.workers.gpu.measuring.counters import count_around

    source = cupy.zeros(num_bytes // 8, dtype=cupy.int64)
    target = cupy.empty_like(source)
    other = cupy.zeros(2**25, dtype=cupy.int64)
    return count_around(lambda: cupy.invert(source, out=target), metrics, before=lambda: other.sum())


def count_works(tools_cubin: bytes, problem: Problem, works: list[Work], metrics: tuple[str, ...]) -> list[CountAnswer]:
    """Counts several workloads in turn; `tools_cubin` is tools.cu compiled for the GPU."""
    from tuner.workers.gpu.session import Session

    session = Session(tools_cubin)
    return [session.count(problem, work, metrics) for work in works]


def num_mma_instructions(graph: TileGraph) -> int:
    """The number of warp-level m16n8k16 instructions of one launch of the `mma` engine; partial tiles and stages are
    counted as whole.

    A task computes tile_m x tile_n x (k rounded up to tile_k); one instruction computes 16 x 8 x 16 of it.
    """
    total = 0
    for index, (rows, columns) in graph.grids.items():
        tile, depth = (
            product_tile(graph.workload.tile_ops[index], graph.tiling.tiles[index]),
            graph.workload.tile_ops[index].k,
        )
        per_stage = (tile.m // 16) * (tile.n // 8) * (tile.k // 16)
        total += rows * columns * -(-depth // tile.k) * per_stage
    return total
