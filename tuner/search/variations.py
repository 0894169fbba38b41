"""Variations, i.e. kinds that launch schedules of another kind differently: which one is tried next, and their results.

They have no model: their trials use the best schedules of the kind that they vary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.stats import median
from tuner.search.model.kind_search import KindSearch
from tuner.search.model.pool import canonical

#: Maximum ratio of a variation's time to its base's at which it is clearly faster: for one schedule measured both ways,
#: and for the median of several.
CLEARLY_FASTER, FASTER = 0.98, 0.995
#: A variation, and the kind whose best schedules it tries.
Pair = tuple[PlanKind, PlanKind]


class Variations:
    """The variations of one search."""

    def __init__(
        self, known: Iterable[Pair], offered: Iterable[PlanKind], kinds: Mapping[PlanKind, KindSearch]
    ) -> None:
        """`known` are the variations in the order of their turns; those among `offered` are tried; `kinds` are the
        kinds that they vary."""
        self._kinds = kinds
        pairs = tuple(known)
        #: The schedules of each variation with their observed values, as in `KindSearch.tried`.
        self.values = {kind: dict[Schedule, float | None]() for kind, _ in pairs}
        #: The variations that are tried, in the order of their turns.
        self.pairs = [pair for pair in pairs if pair[0] in set(offered)]

    def untried(self) -> list[Pair]:
        """The variations without a trial so far."""
        return [pair for pair in self.pairs if not self.values[pair[0]]]

    def by_turns(self) -> list[Pair]:
        """The variations, starting with the one whose turn it is, or every other time with the most promising one."""
        num_given = sum(map(len, self.values.values()))
        turn = num_given // 2 % max(1, len(self.pairs))
        pairs = [*self.pairs[turn:], *self.pairs[:turn]]
        if num_given % 2:
            pairs.sort(key=lambda pair: self._promise(*pair))
        return pairs

    def leading(self) -> list[Pair]:
        """The variations that are faster than their base and have something left to try, the most promising first."""
        promises = {pair: self._promise(*pair) for pair in self.pairs if self._is_ahead(*pair)}
        return sorted((pair for pair in promises if promises[pair] < math.inf), key=promises.__getitem__)

    def faster_way(self, base: PlanKind) -> PlanKind | None:
        """The kind that launches the kernels of `base` programmatically and is clearly faster, judged by schedules
        measured both ways; None if there is none, or it is not known yet."""
        ways = (kind for kind, varied in self.pairs if varied is base and kind.is_programmatic)
        for kind in ways:
            ratios = self._ratios(kind, base)
            if ratios and median(ratios) < (FASTER if len(ratios) > 1 else CLEARLY_FASTER):
                return kind
        return None

    def gain(self, kind: PlanKind, base: PlanKind) -> float:
        """The median ratio of a variation's time to its base's; 1 if unknown."""
        ratios = self._ratios(kind, base)
        return median(ratios) if ratios else 1.0

    def _ratios(self, kind: PlanKind, base: PlanKind) -> list[float]:
        """The ratios for schedules that were measured both ways."""
        both = ((self.values[kind].get(canonical(kind, one)), value) for one, value in self._kinds[base].own.items())
        return [varied / value for varied, value in both if varied is not None and value is not None]

    def unfounded(self) -> list[Candidate]:
        """The best schedule of each tried variation, if its base has not tried it: a prior is only tried as a
        variation, and the base's model knows only the base's own trials."""
        found = list[Candidate]()
        for kind, base in self.pairs:
            measured = [(value, schedule) for schedule, value in self.values[kind].items() if value is not None]
            if not measured:
                continue
            best = min(measured, key=lambda one: one[0])[1]
            if all(canonical(kind, schedule) != best for schedule in self._kinds[base].given):
                found.append(Candidate(plan_kind=base, schedule=canonical(base, best)))
        return found

    def _is_ahead(self, kind: PlanKind, base: PlanKind) -> bool:
        """Whether a variation's best schedule is faster than its base's best."""
        own = [value for value in self.values[kind].values() if value is not None]
        others = [value for value in self._kinds[base].tried.values() if value is not None]
        return bool(own and others) and min(own) < min(others)

    def _promise(self, kind: PlanKind, base: PlanKind) -> float:
        """The expected value of a variation's next trial: that of its base's best schedule that the variation has not
        tried, times the ratio for other schedules; inf if unknown."""
        ratios, untried = list[float](), list[float]()
        for schedule, value in self._kinds[base].tried.items():
            if value is None:
                continue
            own = canonical(kind, schedule)
            if own not in self.values[kind]:
                untried.append(value)
            elif varied := self.values[kind][own]:
                ratios.append(varied / value)
        return min(untried) * median(ratios) if untried and ratios else math.inf
