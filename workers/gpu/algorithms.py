"""Times the vendor library's algorithms in the chain, and has the baseline use the best."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from cupy.cuda.runtime import CUDARuntimeError

from tuner.errors import WorkerError
from workers.contest import Choices, Picked, first_of, pick, pick_streams, with_one
from workers.gpu.baselines import LibraryRunner
from workers.gpu.timing import Timer


def pick_algorithms(library: LibraryRunner, timer: Timer) -> Picked:
    """What `workers.contest` picks; `library` uses it afterwards."""
    graphs: dict[Choices, Any] = {}

    def sample_us(choices: Choices) -> float:
        if choices not in graphs:
            library.choices = choices
            graphs[choices] = timer.capture(library)
            timer.sample_us(graphs[choices])  # loads what is loaded lazily; not counted
        return timer.sample_us(graphs[choices])

    def runs(choices: Choices) -> bool:
        try:
            sample_us(choices)
        except (WorkerError, CUDARuntimeError):  # offered, and refused, which can end a capture too
            return False
        return True

    counts = library.num_algorithms
    first = first_of(counts)
    offered = [[0, *(i for i in range(1, n) if runs(with_one(first, op, i)))] for op, n in enumerate(counts)]
    picked = pick(offered, sample_us)
    if library.can_run_beside:
        picked = _pick_streams(picked, library, timer)
    library.use(picked)
    return picked


def _pick_streams(picked: Picked, library: LibraryRunner, timer: Timer) -> Picked:
    samples_us = []
    for beside in (False, True):
        library.use(replace(picked, beside=beside))
        graph = timer.capture(library)
        timer.sample_us(graph)  # loads what is loaded lazily; not counted
        samples_us.append(partial(timer.sample_us, graph))
    return pick_streams(picked, *samples_us)
