"""Legal tilings that one process of a test run has listed are read by all others: listing those of a problem takes one
to three seconds in each server, and again in each process that searches. So are forecasts."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.kept_forecasts import kept_forecasts
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.space import Space
from tuner.workers.builder.nvrtc import write_atomically

#: Names the run's folder to the processes that it starts.
FOLDER = "KEPT_TILINGS"


def listed_once(name: str, workload: Workload, gpu: Gpu, make: Callable[[], Iterable[Tiling]]) -> tuple[Tiling, ...]:
    """What `make` lists, or what it did in another process of this run; `name` says what is listed."""
    key = hashlib.sha256(repr((name, workload, gpu, gpu.live_clusters)).encode()).hexdigest()
    path = Path(os.environ[FOLDER]) / key
    try:
        found: tuple[Tiling, ...] = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        found = tuple(make())
        write_atomically(path, pickle.dumps(found))
    return found


def _kept(space: Space) -> tuple[Tiling, ...]:
    kind = type(space)
    return listed_once(f"{kind.__module__}.{kind.__qualname__}", space.workload, space.gpu, space._listed)


@contextmanager
def kept(*, with_forecasts: bool = True) -> Iterator[None]:
    """In the block, this process and its forks read and write the tilings and forecasts of this run; without a run, it
    changes nothing."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        if FOLDER in os.environ:
            if with_forecasts:
                stack.enter_context(kept_forecasts(Path(os.environ[FOLDER])))
            tilings = cached_property(_kept)
            tilings.__set_name__(Space, "tilings")
            patch.setattr(Space, "tilings", tilings)
        yield
