"""The plan kind that computes all ops as one op, in a search: its schedules, and its share of the trials.

Its schedules belong to another workload than those of the other kinds, so nothing is exchanged between them. Until both
sides were measured, forecasts decide how many trials it gets; then measured times do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from tuner.core.legal.legality import kind_problem
from tuner.core.model.forecast import forecast_us
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AnySpace, joined_space_of
from tuner.errors import IllegalSchedule, PlanError
from tuner.search.guesses.seeds import first_guesses
from tuner.search.model.kind_search import KindSearch

#: The first trial that it gets, whatever its forecast: a job measures every kind.
FIRST_TRIAL = 2
#: Maximum ratio of its best time to that of the others, and one trial in how many it then gets. Above the last ratio it
#: gets no other trial than the first.
SHARES = ((0.85, 2), (1.0, 3), (1.15, 8))
#: Maximum number of its first trials if none of them could be measured.
MOST_FAILED = 3
#: Number of its trials that follow the order of its forecasts; then every other one does.
NUM_FORECAST = 4


def spaces_of(space: AnySpace) -> dict[PlanKind, AnySpace]:
    """The plan kinds of the space's workload on its GPU, each with the space of its schedules."""
    kinds = [kind for kind in PlanKind if kind_problem(space.workload, space.gpu, kind) is None]
    joined = joined_space_of(space.workload, space.gpu) if any(kind.is_joined for kind in kinds) else None
    found = {kind: joined if kind.is_joined else space for kind in kinds}
    return {kind: own for kind, own in found.items() if own is not None}


def joined_guesses(space: AnySpace, seed: int) -> Iterator[Candidate]:
    """Its first guesses for a workload, shortest forecast first; none if the workload does not have the kind."""
    for kind in PlanKind:
        if kind.is_joined and (own := joined_space_of(space.workload, space.gpu)) is not None:
            yield from (Candidate(plan_kind=kind, schedule=one) for one in first_guesses(own, seed))


class JoinedTurns:
    """When a search tries the kind, and which schedule."""

    def __init__(
        self,
        space: AnySpace,
        kinds: Mapping[PlanKind, KindSearch],
        seed: int,
        other_first: Callable[[], Candidate | None],
    ) -> None:
        """`kinds` are the searches of all kinds; `other_first` is the first guess of the others."""
        self._space, self._seed, self._other_first = space, seed, other_first
        self._search = next((search for kind, search in kinds.items() if kind.is_joined), None)
        self._others = [search for kind, search in kinds.items() if not kind.is_joined]

    @cached_property
    def guesses(self) -> list[Candidate]:
        """All schedules of the kind, shortest forecast first."""
        return [*joined_guesses(self._space, self._seed)] if self._search else []

    def next(self, num_given: int, varied: Iterable[Mapping[Schedule, float | None]]) -> Candidate | None:
        """The kind's next candidate, if it is its turn after `num_given` trials; `varied` has the times of the others'
        variations."""
        search = self._search
        if search is None or not self._is_due(search, num_given, varied):
            return None
        num_own = len(search.given)
        if num_own < NUM_FORECAST or num_own % 2 == 0:
            return next((one for one in self.guesses if one.schedule not in search.given), None)
        schedule = search.ask()
        return None if schedule is None else Candidate(plan_kind=self.guesses[0].plan_kind, schedule=schedule)

    def _is_due(self, search: KindSearch, num_given: int, varied: Iterable[Mapping[Schedule, float | None]]) -> bool:
        num_own = len(search.given)
        if num_own == 0:
            return num_given >= FIRST_TRIAL
        own = _best(search.tried)
        if own == math.inf and num_own == len(search.tried):
            return num_own < MOST_FAILED
        others = min(_best(one) for one in (*(other.own for other in self._others), *varied))
        ratio = own / others if max(own, others) < math.inf else self._forecast_ratio
        every = next((every for limit, every in SHARES if ratio <= limit), 0)
        return every > 0 and num_own * every <= num_given

    @cached_property
    def _forecast_ratio(self) -> float:
        """The ratio of its shortest forecast to that of the first guess of the others, in programmatic launches."""
        own_us, other_us = self._forecast_us(self.guesses[0]), self._forecast_us(self._other_first())
        return own_us / other_us if own_us < math.inf else math.inf

    def _forecast_us(self, candidate: Candidate | None) -> float:
        if candidate is None:
            return math.inf
        try:
            return forecast_us(self._space.workload, self._space.gpu, candidate)
        except (IllegalSchedule, PlanError):
            return math.inf


def _best(values: Mapping[Schedule, float | None]) -> float:
    return min((value for value in values.values() if value is not None), default=math.inf)
