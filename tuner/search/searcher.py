"""The search of one job: the library first, then both plan kinds of ours, each by guesses and then by its model."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cached_property

import optuna
from optuna.trial import TrialState, create_trial

from tuner.core.job import Trial
from tuner.core.outcome import Candidate, Measured, PlanKind
from tuner.core.schedule import Schedule
from tuner.core.space import Space
from tuner.search.axes import distributions, from_params, to_params
from tuner.search.pool import Pool, canonical
from tuner.search.sampler import PoolExhausted, PoolSampler
from tuner.search.seeds import NUM_SEEDS, seed_schedules

optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study per job and kind is no news

#: One trial in so many tries two launches; the others a fused one.
TWO_LAUNCHES_EVERY = 5


class _KindSearch:
    """One plan kind's trials, in an Optuna study in memory."""

    def __init__(self, space: Space, kind: PlanKind, seed: int) -> None:
        self._axes = distributions(len(space.workload.ops))
        self._study = optuna.create_study(sampler=PoolSampler(Pool(space, kind, seed), self._axes))
        self._asked: optuna.Trial | None = None
        #: What was told, in order: library's time over this one's, inverted; None where it was not measured.
        self.tried: dict[Schedule, float | None] = {}

    def ask(self) -> Schedule | None:
        """The model's choice; None where nothing legal is left untried."""
        try:
            self._asked = self._study.ask(self._axes)
        except PoolExhausted:
            return None
        return from_params(self._asked.params)

    def tell(self, schedule: Schedule, value: float | None) -> None:
        """Adds a recorded trial, whoever chose it."""
        self.tried[schedule] = value
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        if self._asked is not None and from_params(self._asked.params) == schedule:
            self._study.tell(self._asked, value, state)
        else:
            params = to_params(schedule)
            self._study.add_trial(create_trial(state=state, value=value, params=params, distributions=self._axes))
        self._asked = None

    def best(self) -> list[Schedule]:
        """What was measured, the fastest first."""
        measured = [(value, schedule) for schedule, value in self.tried.items() if value is not None]
        return [schedule for _, schedule in sorted(measured, key=lambda item: item[0])]


class Searcher:
    """Gives the next candidate. The same space, seed and trials give the same one, so that a search goes on after a
    restart as if nothing had happened."""

    def __init__(self, space: Space, *, seed: int, history: Iterable[Trial] = ()) -> None:
        self._space = space
        self._seed = seed
        self._kinds = {kind: _KindSearch(space, kind, seed) for kind in PlanKind if kind.is_ours}
        self._num_told = 0
        for trial in history:
            self.tell(trial)

    @cached_property
    def _seeds(self) -> list[Schedule]:
        return seed_schedules(self._space, random.Random(f"{self._seed}/seeds"))

    def ask(self) -> Candidate | None:
        """The next candidate; None where nothing legal is left untried."""
        if self._num_told == 0:
            return Candidate(plan_kind=PlanKind.LIBRARY)
        turn = self._num_told % TWO_LAUNCHES_EVERY == 2
        kinds = (PlanKind.TWO_LAUNCHES, PlanKind.FUSED) if turn else (PlanKind.FUSED, PlanKind.TWO_LAUNCHES)
        for kind in kinds:
            schedule = self._guess(kind) or self._kinds[kind].ask()
            if schedule is not None:
                return Candidate(plan_kind=kind, schedule=schedule)
        return None

    def _guess(self, kind: PlanKind) -> Schedule | None:
        """What needs no model: forecasts for fused; for two launches, every other time, what is best when fused."""
        tried = self._kinds[kind].tried
        guesses: list[Schedule] = []
        if kind is PlanKind.FUSED and len(tried) < NUM_SEEDS:
            guesses = self._seeds
        elif kind is PlanKind.TWO_LAUNCHES and len(tried) % 2 == 0:
            best = self._kinds[PlanKind.FUSED].best() or self._seeds
            guesses = [canonical(kind, schedule) for schedule in best]
        return next((guess for guess in guesses if guess not in tried), None)

    def tell(self, trial: Trial) -> None:
        """Adds a recorded trial; a candidate that failed counts as slow, not as unknown."""
        self._num_told += 1
        schedule, outcome = trial.candidate.schedule, trial.outcome
        if schedule is not None:
            value = 1 / outcome.speedup if isinstance(outcome, Measured) else None
            self._kinds[trial.candidate.plan_kind].tell(schedule, value)
