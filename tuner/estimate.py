"""What kernels would gain, before anything is tuned: from the built-in results and the simulator.

`tuner-client estimate` runs it as a program: ``python -m tuner.estimate`` reads ``{"target": ..., "pairs": [...]}`` and
prints a line of JSON for each pair. The client's own installation has neither NumPy nor the simulator.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tuner.core.model.bounds import reference_us
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.joint import any_space_of
from tuner.core.trial.job import Objective, default_regime
from tuner.core.trial.priors import Found, KnownFinals
from tuner.dispatch.library_model import library_us
from tuner.errors import IllegalSchedule, InvalidInput, PlanError, TunerError
from tuner.search.guesses.priors import Asked, choose_priors, distance
from tuner.search.guesses.seeds import drawn_guesses, first_guesses
from tuner.search.joined import joined_guesses
from tuner.winners.shipped import ShippedWinners
from tuner.wire.requests.pairs import Asked as AskedPair
from tuner.wire.requests.pairs import workload_of

#: Maximum distance of shapes whose results are used: up to 1.4 times the rows, or one op with twice the weights.
NEAR = 0.5
#: The number of candidates of similar shapes that are forecast, as in `tuner.search.guesses.priors`.
_TRIALS = 32
#: With fewer than twice as many problems, a second process is not worth its start.
_FEW = 4
#: Number of first guesses that are forecast for each plan kind if there are no similar shapes.
_NUM_GUESSES = 4


class Basis(StrEnum):
    """The basis of an estimate."""

    #: Finals of exactly this problem, on this model of card.
    MEASURED = "measured"
    #: Finals or a search of a similar problem, whose times are scaled by the hardware's limits.
    NEAR = "near"
    #: The simulator, for the library and for schedules found for similar shapes.
    SIMULATED = "simulated"
    #: Nothing is known.
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a kernel would gain."""

    basis: Basis
    #: The problem that the estimate comes from, and its distance; or why there is no estimate.
    words: str
    #: Microseconds; None if there is no estimate.
    library_us: float | None = None
    ours_us: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        return {**vars(self), "basis": str(self.basis)}


class Estimator:
    """Estimates for one model of card."""

    def __init__(self, gpu: Gpu, found: Sequence[Found], finals: Mapping[str, KnownFinals]) -> None:
        self._gpu, self._found, self._finals = gpu, found, finals

    def of(self, workload: Workload) -> Estimate:
        """What is known about a problem with a cold L2, best first."""
        objective = Objective(regime=default_regime(workload))
        nearest = min(self._found, key=lambda one: distance(workload, objective, one), default=None)
        away = math.inf if nearest is None else distance(workload, objective, nearest)
        if nearest is not None and away <= NEAR:
            return self._as_measured(workload, nearest, away)
        return self._simulated(workload, objective)

    def _as_measured(self, workload: Workload, nearest: Found, away: float) -> Estimate:
        same = [one for one in self._found if (one.workload, one.objective) == (nearest.workload, nearest.objective)]
        best = min(same, key=lambda one: one.time_us)
        known = self._finals.get(best.source)
        library, ours = (
            (best.time_us * best.speedup, best.time_us) if known is None else (known.library_us, known.ours_us)
        )
        if nearest.workload == workload and known is not None:
            return Estimate(basis=Basis.MEASURED, words=best.source, library_us=library, ours_us=ours)
        factor = reference_us(workload, self._gpu) / reference_us(nearest.workload, self._gpu)
        words = f"{best.source}: {nearest.workload.describe()}, distance {away:.2g}"
        return Estimate(basis=Basis.NEAR, words=words, library_us=library * factor, ours_us=ours * factor)

    def _simulated(self, workload: Workload, objective: Objective) -> Estimate:
        try:
            space = any_space_of(workload, self._gpu)
            asked = Asked(space=space, objective=objective, kernel_version="", num_trials=_TRIALS)
            found = [(f"a schedule of {one.source}", one.candidate) for one in choose_priors(asked, self._found)]
            guesses = [] if found else list(islice(first_guesses(space, 0, tuple), _NUM_GUESSES))
            if not (found or guesses):  # an engine without calculated guesses, e.g. for images of three channels
                guesses = drawn_guesses(space, 0)[:_NUM_GUESSES]
            joined = () if found else islice(joined_guesses(space, 0), 1)
            found += [
                ("a first candidate of a search", Candidate(plan_kind=kind, schedule=schedule))
                for schedule in guesses
                for kind in PlanKind
                if kind.is_ours and not kind.is_joined
            ]
            found += [("a first candidate of a search", one) for one in joined]
            known = [(us, words) for words, one in found if (us := self._forecast_us(workload, one)) is not None]
            if not known:
                return Estimate(basis=Basis.NONE, words="no schedule for it is known")
            ours, words = min(known)
            of_library = library_us(workload, self._gpu)
            return Estimate(
                basis=Basis.SIMULATED, words=f"the simulator, with {words}", library_us=of_library, ours_us=ours
            )
        except TunerError as error:
            return Estimate(basis=Basis.NONE, words=str(error))

    def _forecast_us(self, workload: Workload, candidate: Candidate) -> float | None:
        """The forecast, microseconds; None for a refused candidate."""
        try:
            return forecast_us(workload, self._gpu, candidate)
        except (IllegalSchedule, PlanError):
            return None


def estimator_of(target_id: str) -> Estimator:
    """Reads the built-in winners.

    Raises:
        InvalidInput: there is no such card.
    """
    if target_id not in CATALOGUE:
        raise InvalidInput("target", f"{target_id!r} is not a known card", f"use one of {', '.join(CATALOGUE)}")
    winners = ShippedWinners()
    return Estimator(CATALOGUE[target_id], winners.of(target_id), winners.finals(target_id))


def main() -> None:
    """Reads the queries, and prints a line of JSON for each pair."""
    asked = json.load(sys.stdin)
    try:
        estimator = estimator_of(asked["target"])
        workloads = [workload_of(TypeAdapter(AskedPair).validate_python(pair)) for pair in asked["pairs"]]
    except (InvalidInput, ValidationError) as error:
        raise SystemExit(str(error)) from error
    for found in estimates(estimator, workloads):
        print(json.dumps(found.to_json()), flush=True)


def estimates(estimator: Estimator, workloads: Sequence[Workload]) -> Iterator[Estimate]:
    """The estimates, in the order of the queries. The simulator takes a third of a second for each, so all cores are
    used."""
    num_processes = min(os.cpu_count() or 1, len(workloads) // _FEW)
    if num_processes < 2:
        yield from map(estimator.of, workloads)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        yield from pool.map(estimator.of, workloads)


if __name__ == "__main__":
    main()
