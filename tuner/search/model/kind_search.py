"""The search among one plan kind's schedules: which were issued and observed, and what its model would try next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import optuna
from optuna.trial import TrialState, create_trial

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AnySpace
from tuner.search.model.axes import distributions, from_params, to_params
from tuner.search.model.pool import Pool
from tuner.search.model.sampler import PoolExhausted, PoolSampler

optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study per job and kind needs no log message


class KindSearch:
    """One plan kind's trials, in an Optuna study in memory."""

    def __init__(self, space: AnySpace, kind: PlanKind, seed: int) -> None:
        self._axes = distributions(next(iter(space)))
        self.pool = Pool(space, kind, seed)
        self._sampler = PoolSampler(self.pool, self._axes)
        self._study = optuna.create_study(sampler=self._sampler)
        self._asked: dict[Schedule, optuna.Trial] = {}
        #: The observed schedules in order, each with its time relative to the library's; None if it was not measured.
        self.tried: dict[Schedule, float | None] = {}
        #: The observations of the kind itself, without those inferred from a variation.
        self.own: dict[Schedule, float | None] = {}
        #: Issued or observed schedules, which must not be issued again.
        self.given: set[Schedule] = set()

    def ask(self, *, is_built: bool = False) -> Schedule | None:
        """The model's choice; with `is_built`, only among schedules of measured tilings, if any are left. None if no
        legal schedule is left untried."""
        measured = (schedule.tiling for schedule, value in self.tried.items() if value is not None)
        self._sampler.preferred = frozenset(measured if is_built else ())
        try:
            asked = self._study.ask(self._axes)
        except PoolExhausted:
            return None
        schedule = from_params(asked.params)
        self._asked[schedule] = asked
        return schedule

    def give(self, schedule: Schedule) -> None:
        """Records that a schedule is in progress, whichever part of the search chose it."""
        self.given.add(schedule)
        self._sampler.withdraw(schedule)

    def think_ahead(self) -> bool:
        """Same as `Searcher.think_ahead`."""
        return self._sampler.think_ahead()

    def tell(self, schedule: Schedule, value: float | None, *, is_inferred: bool = False) -> None:
        """Adds a recorded trial, whichever part of the search chose it, or what a variation's trial implies for the
        kind.
        """
        self.tried[schedule] = value
        if not is_inferred:
            self.own[schedule] = value
        self.given.add(schedule)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        if asked := self._asked.pop(schedule, None):
            self._study.tell(asked, value, state)
        else:
            params = to_params(schedule)
            self._study.add_trial(create_trial(state=state, value=value, params=params, distributions=self._axes))

    def new_tilings_first(self, best: Iterable[Schedule]) -> Iterator[Schedule]:
        """Another kind's best schedules in this kind's form, with tilings that are new to it first: the best fused
        schedules are mostly one tiling in many orders, most of which are irrelevant for separate launches."""
        known, given = list[Schedule](), {schedule.tiling for schedule in self.given}
        for guess in best:
            if guess.tiling in given:
                known.append(guess)
            else:
                yield guess
        yield from known

    def best(self) -> list[Schedule]:
        """The measured schedules, fastest first."""
        measured = [(value, schedule) for schedule, value in self.tried.items() if value is not None]
        return [schedule for _, schedule in sorted(measured, key=lambda item: item[0])]
