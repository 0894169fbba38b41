"""Times the vendor library's algorithms in the chain, and selects the fastest in the baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cupy.cuda.runtime import CUDARuntimeError

from tuner.core.problem.objective import Regime
from tuner.errors import WorkerError

from ...timing.library_choice import Choices, Picked, Rounds, first_of, pick, pick_adds, pick_streams, with_one
from ..library.baseline import Library
from .timing import Timer

#: Rounds that compare two ways of using the library.
CONTEST_ROUNDS = {Regime.BURST: 15, Regime.SUSTAINED: 5}


def pick_algorithms(library: Library, timer: Timer) -> Picked:
    """Chooses algorithms with `tuner.workers.timing.library_choice`; `library` then uses them."""
    graphs: dict[Choices, Any] = {}

    def captured(choices: Choices) -> Any:
        if choices not in graphs:
            library.choices = choices
            graphs[choices] = timer.capture(library)
            timer.sample_us(graphs[choices])  # loads what is loaded lazily; not counted
        return graphs[choices]

    def sample_us(choices: Choices) -> float:
        return timer.sample_us(captured(choices))

    def runs(choices: Choices) -> bool:
        try:
            sample_us(choices)
        except (WorkerError, CUDARuntimeError):  # in the list but refused, which can also end a capture
            return False
        return True

    counts = library.num_algorithms
    first = first_of(counts)
    offered = [[0, *(i for i in range(1, n) if runs(with_one(first, op, i)))] for op, n in enumerate(counts)]
    picked = pick(offered, sample_us, lambda a, b: _rounds_us(timer, captured(a), captured(b)))
    if library.can_run_beside:
        picked = pick_streams(picked, _both_us(picked, replace(picked, beside=True), library, timer))
    if library.can_add_in_norms:
        picked = pick_adds(picked, _both_us(picked, replace(picked, adds_in_norms=True), library, timer))
    library.use(picked)
    return picked


def _both_us(usual: Picked, other: Picked, library: Library, timer: Timer) -> Rounds:
    """Times of the library used in one way and in the other."""
    graphs = []
    for picked in (usual, other):
        library.use(picked)
        graphs.append(timer.capture(library))
    return _rounds_us(timer, *graphs)


def _rounds_us(timer: Timer, usual: Any, other: Any) -> Rounds:
    num_rounds = CONTEST_ROUNDS[timer.data.problem.objective.regime]
    tracks = timer.rounds([usual, other], lambda tracks, _: len(tracks[0]) >= num_rounds)
    usual_us, other_us = ([sample.time_us for sample in track] for track in tracks)
    return usual_us, other_us
