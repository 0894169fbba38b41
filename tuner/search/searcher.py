"""The search of one job: the library first, then our plan kinds.

Fused and two launches are searched, each by guesses and then by its model. The other kinds launch the same kernels in
another way, so they have no model: their turn tries the best schedule of the kind that they vary.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cached_property

import optuna
from optuna.trial import TrialState, create_trial

from tuner.core.job import Trial
from tuner.core.legality import kind_problem
from tuner.core.outcome import Candidate, Measured, PlanKind
from tuner.core.schedule import Schedule
from tuner.core.space import Space
from tuner.search.axes import distributions, from_params, to_params
from tuner.search.pool import Pool, canonical
from tuner.search.sampler import PoolExhausted, PoolSampler
from tuner.search.seeds import NUM_SEEDS, seed_schedules

optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study per job and kind is no news

#: One trial in so many is not a fused one: two launches, and in turn with these a variation.
APART_EVERY = 5
#: From this trial on every other one is a variation, until each has had a turn: small budgets try them, too.
FIRST_VARIATION = 4
#: Variations in the order of their turns, and the kind whose best schedules they try.
VARIATIONS = (
    (PlanKind.FUSED_PDL, PlanKind.FUSED),
    (PlanKind.TWO_LAUNCHES_PDL, PlanKind.TWO_LAUNCHES),
    (PlanKind.TWO_STREAMS, PlanKind.FUSED),
    (PlanKind.FUSED_PDL, PlanKind.FUSED),
)


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
        self._kinds = {kind: _KindSearch(space, kind, seed) for kind in (PlanKind.FUSED, PlanKind.TWO_LAUNCHES)}
        self._varied = {kind: set[Schedule]() for kind, _ in VARIATIONS}
        self._variations = [pair for pair in VARIATIONS if kind_problem(space.workload, space.gpu, pair[0]) is None]
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
        apart = self._num_told % APART_EVERY == 2
        if candidate := self._variation(apart):
            return candidate
        for kind in (PlanKind.TWO_LAUNCHES, PlanKind.FUSED) if apart else (PlanKind.FUSED, PlanKind.TWO_LAUNCHES):
            schedule = self._guess(kind) or self._kinds[kind].ask()
            if schedule is not None:
                return Candidate(plan_kind=kind, schedule=schedule)
        return self._vary(self._variations)

    def _variation(self, apart: bool) -> Candidate | None:
        """A variation where it is one's turn: early, one that was never tried; later, in turn."""
        untried = [pair for pair in self._variations if not self._varied[pair[0]]]
        if self._num_told >= FIRST_VARIATION and self._num_told % 2 == 0 and (candidate := self._vary(untried)):
            return candidate
        if not apart or self._num_told // APART_EVERY % 2 == 0:
            return None
        turn = sum(map(len, self._varied.values())) % max(1, len(self._variations))
        return self._vary([*self._variations[turn:], *self._variations[:turn]])

    def _vary(self, variations: list[tuple[PlanKind, PlanKind]]) -> Candidate | None:
        """The best schedule that a variation has not tried, of the first of these that has one."""
        for kind, base in variations:
            best = (canonical(kind, schedule) for schedule in self._kinds[base].best())
            schedule = next((schedule for schedule in best if schedule not in self._varied[kind]), None)
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
        kind, schedule, outcome = trial.candidate.plan_kind, trial.candidate.schedule, trial.outcome
        if schedule is None:
            return
        if kind in self._varied:
            self._varied[kind].add(schedule)
        else:
            self._kinds[kind].tell(schedule, 1 / outcome.speedup if isinstance(outcome, Measured) else None)
