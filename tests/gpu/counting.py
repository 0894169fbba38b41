"""What the tests of counters run in processes of their own: a process that has counted must not time any more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from tuner.core.evaluator import Problem
from tuner.core.inspection import CounterReport
from workers.messages import CountAnswer, Work

T = TypeVar("T")


def apart(function: Callable[..., T], *args: object) -> T:
    """`function(*args)` in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def count_copy(num_bytes: int, metrics: tuple[str, ...]) -> CounterReport:
    """Counts a kernel that reads `num_bytes` and writes as many, behind a read of 256 MiB."""
    import cupy

    from workers.gpu.counters import count_around

    source = cupy.zeros(num_bytes // 8, dtype=cupy.int64)
    target = cupy.empty_like(source)
    other = cupy.zeros(2**25, dtype=cupy.int64)
    return count_around(lambda: cupy.invert(source, out=target), metrics, before=lambda: other.sum())


def count_works(tools_cubin: bytes, problem: Problem, works: list[Work], metrics: tuple[str, ...]) -> list[CountAnswer]:
    """Counts one work after the other; `tools_cubin` is tools.cu compiled for the card."""
    from workers.gpu.session import Session

    session = Session(tools_cubin)
    return [session.count(problem, work, metrics) for work in works]
