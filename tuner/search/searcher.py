"""The search of one job: the library first, then our plan kinds.

The kinds fused and one launch per op are searched, each first with guesses and then with its model. So are the runs of
a chain of at least three ops: the cut of the best fused schedule is chosen by forecast, and the cut is an axis of the
model. After the first guesses of fused, the best one is tried with a first wave, and with the policies' orders. Other
kinds are variations, which launch the same kernels differently, so they have no model: they try the best schedules of
the kind that they vary. If programmatic launches are faster, the model's choices use them directly, and the model
learns from the results.

The gain from fusing only shows in comparison with the same tiling in two launches. So a better fused schedule soon gets
its *repeat*, the same schedule as far as separate launches can use it. If the best of a variation was a prior, it is
also tried in the kind that it varies, so that the model knows it. The last trials of a budget try, in every kind, the
best schedule that it has not tried, for the finals. A kind that computes all ops as one takes turns with the rest
(`tuner.search.joined`). From a few trials before that, the model only varies the order of
kernels that are already built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, islice

from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind, in_turn
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AnySpace
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured
from tuner.search.guesses.other_orders import OtherOrders
from tuner.search.guesses.seeds import (
    NUM_DRAWN,
    NUM_SEEDS,
    drawn_guesses,
    first_guesses,
    runs_by_forecast,
)
from tuner.search.guesses.sharing import sharing_sms
from tuner.search.guesses.side_by_side import forms_of
from tuner.search.joined import JoinedTurns, spaces_of
from tuner.search.meanwhile import Begin
from tuner.search.model.kind_search import KindSearch
from tuner.search.model.pool import canonical, draw_elsewhere, in_runs
from tuner.search.model.sampler import REDRAWN_EVERY, RENEWED_EVERY
from tuner.search.variations import CLEARLY_FASTER, Pair, Variations

#: One trial in `APART_EVERY` is not fused: one launch per op, alternating with a variation.
APART_EVERY = 5
#: The same if no launch computes all ops, since the speed then depends on how well the launches overlap.
VARIED_EVERY = 3
#: One trial in `RUNS_TURN` of a chain is launched as runs.
RUNS_TURN = 4
#: From this trial on, every other one is a variation, until each has been tried, so that small budgets include them.
FIRST_VARIATION = 4
#: In addition, one trial in `LEADING_EVERY` is a variation, if variations are faster than what they vary.
LEADING_EVERY = 5
#: Minimum number of trials from one trial with a launch per op to the next.
REPEAT_EVERY = 6
#: The last trials are at most one trial in `LAST_SHARE` of the budget.
LAST_SHARE = 4
#: Number of trials before the last ones in which the model only chooses orders of built kernels: nothing is built.
NUM_SETTLING = 5
#: Name of the call that draws first guesses.
_GUESSES = "guesses"


class Searcher:
    """Chooses the next candidate. The same space, seed and trials give the same candidate, so that a search continues
    unchanged after a restart.

    Several candidates may be in progress; a candidate that was issued and not yet observed is not returned again.
    """

    def __init__(
        self,
        space: AnySpace,
        *,
        seed: int,
        history: Iterable[Trial] = (),
        priors: Iterable[Candidate] = (),
        seeds: Sequence[Schedule] | None = None,
        num_trials: int | None = None,
        begin: Begin | None = None,
    ) -> None:
        """`priors` are legal generated candidates that are tried first, after the library; `seeds` the first guesses,
        if already known; `num_trials` the budget, if there is one; `begin` starts background work."""
        self._space = space
        spaces = spaces_of(space)
        searched = [kind for kind in spaces if kind.is_searched]
        variations = [(kind, kind.base) for kind in in_turn(len(space.workload.ops)) if kind.base]
        self._kinds = {kind: KindSearch(spaces[kind], kind, seed) for kind in searched}
        self._variations = Variations(variations, spaces, self._kinds)
        self._joined = JoinedTurns(space, self._kinds, seed, self._first_guess)
        #: The kind with a launch per op, and the one in runs, if any.
        self._apart = next(kind for kind in searched if kind.is_apart)
        #: The kind with the first guesses: one launch for all ops, if there is such a kind.
        self._main = PlanKind.FUSED if PlanKind.FUSED in searched else self._apart
        self._runs = next((kind for kind in searched if kind.is_in_runs), None)
        #: Kinds that reuse the best schedule of another kind, in the order of the last trials, so that later ones
        #: can use earlier results.
        repeated = [(kind, self._main) for kind in (self._apart, self._runs) if kind and kind is not self._main]
        self._repeats = (*repeated, *dict.fromkeys(variations))
        #: A fused schedule cut into runs, shortest forecast first.
        self._in_runs = cache(partial(runs_by_forecast, space))
        self._priors = deque(priors)
        self._all_priors = frozenset(self._priors)  # including those that were tried
        self._known_seeds = list(seeds or ())
        self._drawn_guesses: Callable[[], list[Schedule]] = partial(drawn_guesses, space, seed)
        fresh = () if seeds is not None else first_guesses(space, seed, lambda: self._drawn_guesses(), begin)
        self._more_seeds = iter(fresh)
        self._other_orders = OtherOrders(space, self._kinds[self._main])
        self._foreseen: Iterator[Candidate] | None = None
        self._num_last = min(len(self._repeats), num_trials // LAST_SHARE) if num_trials else 0
        self._first_of_last = num_trials - self._num_last if num_trials else 0
        self._num_observed, self._is_winding_up = 0, False
        #: The number of the last trial with a launch per op.
        self._last_apart = -REPEAT_EVERY
        self._on_their_way: set[Candidate] = set()
        for trial in history:
            self.tell(trial)
        #: Whether the draws have begun; any other work in advance would then wait for them.
        self._has_begun = begin is not None and not self._num_observed and self._is_worth_thinking_ahead
        if begin and self._has_begun:
            self._begin_draws(begin)

    def _begin_draws(self, begin: Begin) -> None:
        """Starts the draws for later choices, in the order in which they are needed. They depend only on the seed."""
        take = begin({_GUESSES: self._drawn_guesses})
        self._drawn_guesses = partial(take, _GUESSES)
        pools = {kind: search.pool for kind, search in reversed(self._kinds.items())}
        every = {kind: 1 if kind is self._main else APART_EVERY for kind in pools}
        draw_elsewhere(begin, pools, every, 1 + self._first_of_last // (RENEWED_EVERY * REDRAWN_EVERY))

    def _seeds(self) -> Iterator[Schedule]:
        """The first guesses, each computed on demand."""
        yield from self._known_seeds
        for schedule in self._more_seeds:
            self._known_seeds.append(schedule)
            yield schedule

    def _first_guess(self) -> Candidate | None:
        """The first guess in programmatic launches, if there are any."""
        ways = (kind for kind, base in self._variations.pairs if base is self._main and kind.is_programmatic)
        kind = next(ways, self._main)
        return next((Candidate(plan_kind=kind, schedule=canonical(self._main, one)) for one in self._seeds()), None)

    def ask(self) -> Candidate | None:
        """The next candidate; None if nothing legal is left untried."""
        candidate = self._next()
        if candidate is not None:
            self._give(candidate)
            self._on_their_way.add(candidate)
        return candidate

    def foresee(self) -> Candidate | None:
        """The priors and first guesses that will most likely be chosen, one by one; None at the end. Must be called
        before the first choice, and does not change the choices."""
        if self._foreseen is None:
            # With a small budget nothing is drawn in advance, and the job's turn would have to wait for the draw.
            seeds = islice(self._seeds(), NUM_SEEDS if self._has_begun else NUM_SEEDS - NUM_DRAWN)
            guesses = (canonical(self._main, schedule) for schedule in seeds)
            ours = (Candidate(plan_kind=self._main, schedule=guess) for guess in guesses)
            self._foreseen = chain(tuple(self._priors), islice(ours, 1), self._joined.guesses[:1], ours)
        return next(self._foreseen, None)

    def begin_with(self, priors: Iterable[Candidate]) -> None:
        """Makes the search try `priors` first, instead of its initial ones. Must be called before the first choice."""
        self._priors = deque(priors)
        self._all_priors = frozenset(self._priors)

    def think_ahead(self) -> bool:
        """Does part of the work for a later choice, while no choice is pending; returns whether there was any.

        This does not change the choices. A small budget may never reach such a choice, so nothing is done for it.
        """
        if not self._is_worth_thinking_ahead:
            return False
        is_short = not self._has_begun and len(self._known_seeds) < NUM_SEEDS
        if is_short and (schedule := next(self._more_seeds, None)):
            self._known_seeds.append(schedule)
            return True
        return self._kinds[self._main].think_ahead()

    @property
    def _is_worth_thinking_ahead(self) -> bool:
        """Whether the budget has choices left that need more than the first guesses."""
        return self._first_of_last > 2 * NUM_SEEDS and self._first_of_last - self._num_given >= NUM_SEEDS

    def wind_up(self) -> None:
        """From now on, `ask` only returns best schedules that a kind has not tried."""
        self._is_winding_up = True

    @property
    def waits_for_all(self) -> bool:
        """Whether the next choice is the first of the last trials of the budget. These repeat the best schedule, so it
        should be chosen when nothing is in progress."""
        return self._num_last > 0 and self._num_given == self._first_of_last

    @property
    def _is_settling(self) -> bool:
        """Whether the budget is nearly spent."""
        return self._num_last > 0 and self._num_given >= self._first_of_last - NUM_SETTLING

    @property
    def _num_given(self) -> int:
        return self._num_observed + len(self._on_their_way)

    @property
    def _is_apart_due(self) -> bool:
        """Whether the last trial with a launch per op was some time ago."""
        return self._num_given - self._last_apart >= REPEAT_EVERY

    def _give(self, candidate: Candidate) -> None:
        kind, schedule = candidate.plan_kind, candidate.schedule
        if schedule is None:
            return
        is_instead = self._is_instead(candidate)
        if (varied := self._variations.values.get(kind)) is not None:
            varied.setdefault(schedule, None)
            if not is_instead:
                return
        self._kinds[kind.launched_plainly].give(schedule)
        if kind.launched_plainly is self._apart:
            self._last_apart = self._num_given

    def _is_instead(self, candidate: Candidate) -> bool:
        """Whether the candidate stands for its base's schedule, launched in a faster way. Never with an attention,
        where kinds try schedules that gain nothing from a different way to launch."""
        kind, base = candidate.plan_kind, candidate.plan_kind.base
        is_new = base is not None and candidate.schedule not in self._kinds[base].given
        is_other = candidate in self._all_priors or bool(self._space.own)
        return is_new and kind.is_programmatic and not is_other

    def _next(self) -> Candidate | None:
        if self._num_given == 0:
            return LIBRARY
        if self._is_winding_up:
            return self._late_repeat()
        while self._priors:
            if not self._is_given(prior := self._priors.popleft()):
                return prior
        apart = self._num_given % (APART_EVERY if self._main is not self._apart else VARIED_EVERY) == 2
        if candidate := self._late_repeat() or self._founding():
            return candidate
        if not self._is_settling and (joined := self._joined.next(self._num_given, self._variations.values.values())):
            return joined
        if candidate := self._variation(apart) or self._repeat() or self._leading():
            return candidate
        for kind in self._in_order(is_apart=apart and self._is_apart_due):
            schedule = self._guess(kind) or self._kinds[kind].ask(is_built=self._is_settling)
            if schedule is not None:
                return self._launched(kind, schedule)
        return self._vary(self._variations.pairs)

    def _launched(self, kind: PlanKind, schedule: Schedule) -> Candidate:
        """A candidate with a kind's schedule, launched in the faster way if that is known. First guesses of fused use
        normal launches, which the forecasts assume."""
        is_guess = kind is self._main and len(self._kinds[kind].given) < NUM_SEEDS
        is_plain = is_guess or bool(self._space.own)
        faster = None if is_plain else self._variations.faster_way(kind)
        if faster and schedule not in self._variations.values[faster]:
            return Candidate(plan_kind=faster, schedule=schedule)
        return Candidate(plan_kind=kind, schedule=schedule)

    def _in_order(self, *, is_apart: bool) -> Sequence[PlanKind]:
        """The searched kinds, with the one whose turn it is first."""
        first, runs = self._main, self._runs
        others = (runs,) if runs else ()
        if first is self._apart:  # if no launch computes all ops
            return (*others, first) if self._num_given % 2 else (first, *others)
        if is_apart:
            return self._apart, first, *others
        if runs and self._num_given % APART_EVERY == RUNS_TURN:
            return runs, first, self._apart
        return first, self._apart, *others

    def _is_given(self, candidate: Candidate) -> bool:
        varied = self._variations.values.get(candidate.plan_kind)
        return candidate.schedule in (self._kinds[candidate.plan_kind].given if varied is None else varied)

    def _variation(self, apart: bool) -> Candidate | None:
        """A variation, if it is time for one: early in the search, an untried one; later, alternately the next one in
        turn and the most promising one."""
        is_early = self._num_given >= FIRST_VARIATION and self._num_given % 2 == 0
        if is_early and (candidate := self._vary(self._variations.untried())):
            return candidate
        if not apart or (self._main is not self._apart and self._num_given // APART_EVERY % 2 == 0):
            return None
        pairs = self._variations.by_turns()
        return self._vary([pair for pair in pairs if self._missing(*pair)] or pairs)

    def _leading(self) -> Candidate | None:
        """After the first guesses, if it is time and variations are faster than their bases: another variation,
        alternately of fused and of separate launches, so that neither side of the verdict depends on few trials."""
        if self._num_given % LEADING_EVERY or len(self._kinds[self._main].given) < NUM_SEEDS:
            return None
        ahead = self._variations.leading()
        if ahead and self._num_given // LEADING_EVERY % 2:
            side = ahead[0][0].is_fused
            ahead = [pair for pair in ahead if pair[0].is_fused is not side] or ahead
        return self._vary(ahead)

    def _founding(self) -> Candidate | None:
        """The best schedule of a variation for its base, if the base has not tried it."""
        return next((one for one in self._variations.unfounded() if not self._is_given(one)), None)

    def _repeat(self) -> Candidate | None:
        """The best fused schedule with one launch per op, if untried and the last such trial was some time ago."""
        if self._main is self._apart or not self._is_apart_due:
            return None
        return self._missing(self._apart, self._main)

    def _late_repeat(self) -> Candidate | None:
        """Near the end of the budget: the best schedules that a kind has not tried."""
        if not self._is_winding_up and (not self._num_last or self._num_given < self._first_of_last):
            return None
        if candidate := self._plain():
            return candidate
        pairs = (pair for pair in self._repeats if not pair[0].base or pair in self._variations.pairs)
        return next((candidate for pair in pairs if (candidate := self._missing(*pair))), None)

    def _plain(self) -> Candidate | None:
        """The best fused schedule with normal launches, if that is untried and at most slightly slower."""
        faster, search = self._variations.faster_way(self._main), self._kinds[self._main]
        if not faster or self._variations.gain(faster, self._main) < CLEARLY_FASTER:
            return None
        best = search.best()[0]
        candidate = Candidate(plan_kind=self._main, schedule=best)
        return candidate if best not in search.own and candidate not in self._on_their_way else None

    def _missing(self, kind: PlanKind, base: PlanKind) -> Candidate | None:
        """The best schedule of `base` in the form of `kind`; None if it was issued already, or there is none."""
        best = self._kinds[base].best()
        if not best:
            return None
        schedule = self._in_best_runs(best[0]) if kind.is_in_runs else forms_of(self._space, kind, best[0])[0]
        if schedule is None or self._is_given(candidate := Candidate(plan_kind=kind, schedule=schedule)):
            return None
        return candidate if kind.base else self._launched(kind, schedule)

    def _in_best_runs(self, schedule: Schedule) -> Schedule | None:
        """A fused schedule in the runs of the best measured one, or else in those with the shortest forecast."""
        assert self._runs
        if best := self._kinds[self._runs].best():
            return in_runs(schedule, best[0].ordering.run_starts)
        return next(iter(self._in_runs(schedule)), None)

    def _vary(self, variations: Sequence[Pair]) -> Candidate | None:
        """The best schedule that a variation has not tried, from the first of `variations` that has one. Every other
        time it is a first guess whose launches share SMs, which only helps if they overlap."""
        for kind, base in variations:
            ranked, varied = self._kinds[base].best(), self._variations.values[kind]
            if kind.is_programmatic and len(varied) % 2 == 1:
                sharing = sharing_sms(self._space, self._seeds())
                ranked = [*sharing, *ranked]
            best = (form for schedule in ranked for form in forms_of(self._space, kind, schedule))
            schedule = next((schedule for schedule in best if schedule not in varied), None)
            if schedule is not None:
                return Candidate(plan_kind=kind, schedule=schedule)
        return None

    def _guess(self, kind: PlanKind) -> Schedule | None:
        """The next schedule that needs no model. For fused: first guesses, then other orders of the best one. For the
        others: alternately the best fused schedule and first guesses, for runs in the cut with the best forecast."""
        given = self._kinds[kind].given
        guesses: Iterable[Schedule] = ()
        if kind is self._main:
            seeds = (canonical(kind, schedule) for schedule in self._seeds())
            guesses = seeds if len(given) < NUM_SEEDS else self._other_orders.guesses()
        elif len(given) % 2 == 0:
            best = self._kinds[self._main].best() or self._seeds()
            if kind.is_in_runs and self._main is self._apart:
                guesses = (guess for one in islice(self._seeds(), NUM_SEEDS) for guess in self._in_runs(one)[:1])
            elif kind.is_in_runs:
                guesses = self._in_runs(first) if (first := next(iter(best), None)) else ()
            else:
                guesses = self._kinds[kind].new_tilings_first(canonical(kind, one) for one in best)
        return next((guess for guess in guesses if guess not in given), None)

    def tell(self, trial: Trial) -> None:
        """Adds a recorded trial; a failed candidate is treated as slow, not as unknown."""
        if trial.candidate not in self._on_their_way:
            self._give(trial.candidate)
        self._on_their_way.discard(trial.candidate)
        self._num_observed += 1
        kind, schedule, outcome = trial.candidate.plan_kind, trial.candidate.schedule, trial.outcome
        if schedule is None:
            return
        value = 1 / outcome.speedup if isinstance(outcome, Measured) else None
        if (varied := self._variations.values.get(kind)) is None:
            self._kinds[kind].tell(schedule, value)
            return
        varied[schedule] = value
        plainly = Candidate(plan_kind=kind.launched_plainly, schedule=schedule)
        if plainly.plan_kind is not kind and plainly not in self._on_their_way:
            search, gain = self._kinds[plainly.plan_kind], self._variations.gain(kind, plainly.plan_kind)
            if schedule in search.given and schedule not in search.tried:  # it was issued in that form instead
                search.tell(schedule, value and value / gain, is_inferred=True)
