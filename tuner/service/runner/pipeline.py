"""The candidates of one search: chosen by the searcher, built by the build pool, measured by the lane.

All three work concurrently. Outcomes are used in the order in which they arrive, except that the library's trial always
comes first, since the others are compared with it.

Lanes of idle cards may help. A candidate that is refused or fails there is measured again on the job's own card, and a
lane that stops working is not used again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self

from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Preparation, Prepared, Problem
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome
from tuner.dispatch import BuildPool, MeasureLane
from tuner.errors import Quarantined, WorkerError
from tuner.service.concurrency.waiting import Patience, Stopped, wait_for_one
from tuner.service.runner.ahead import Ahead
from tuner.service.runner.forecasts import with_forecast
from tuner.service.runner.helpers import Lanes, by_helper
from tuner.service.runner.progress import Progress

_log = logging.getLogger(__name__)

#: Candidates queued in a lane: the current one and the next one, so that the card does not wait for this thread.
IN_LANE = 2
#: How often the library's trial is measured if the card's process dies during it, since nothing can be compared without
#: it.
LIBRARY_TRIES = 3


class Chooser(Protocol):
    """Chooses candidates: a search or a list, with the interface of `Searcher`."""

    @property
    def waits_for_all(self) -> bool:
        """Whether the next choice should wait until nothing is in progress."""
        ...

    def ask(self) -> Candidate | None:
        """The next candidate; None if there is none until another trial is known."""
        ...

    def tell(self, trial: Trial) -> None:
        """Adds a recorded trial."""
        ...

    def think_ahead(self) -> bool:
        """Does part of the work for a later choice; returns whether there was any."""
        ...

    def wind_up(self) -> None:
        """Makes it choose nothing new from now on."""
        ...


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A candidate that has its outcome."""

    candidate: Candidate
    outcome: Outcome
    #: The number of trials that the searcher knew when it chose the candidate.
    num_known: int
    #: When it was chosen, seconds since the epoch.
    chosen_at: float
    #: Seconds for which it occupied the job's own card.
    card_s: float
    #: Where it was measured; None if it never reached a card.
    lane: MeasureLane | None


@dataclass(kw_only=True)
class _Traveller:
    """A candidate in progress."""

    candidate: Candidate
    num_known: int
    chosen_at: float
    preparing: Future[Preparation]
    prepared: Prepared | None = None
    #: Where it is measured, and its future outcome; None until it is sent there.
    lane: MeasureLane | None = None
    measuring: Future[Outcome] | None = None
    #: Whether the job's own card has to measure it.
    is_own: bool = False
    outcome: Outcome | None = None
    #: When it entered and left the lane, by the monotonic clock; 0 until then.
    sent_at: float = 0.0
    done_at: float = 0.0
    #: Seconds for which it occupied the job's own card.
    card_s: float = 0.0
    #: Number of times that the card's process died during it.
    num_crashes: int = 0

    @property
    def pending(self) -> Future[Any] | None:
        """The future that the candidate waits for; None while it is queued, and once it has its outcome."""
        if self.outcome is not None:
            return None
        return self.preparing if self.prepared is None else self.measuring

    def is_to_be_repeated(self, outcome: Outcome) -> bool:
        """Whether this outcome of the library's trial is only due to a failure of the card's process; counts such
        failures."""
        if self.candidate.plan_kind.is_ours or not isinstance(outcome, Failed) or outcome.kind != FailureKind.CRASH:
            return False
        self.num_crashes += 1
        return self.num_crashes < LIBRARY_TRIES


class Pipeline:
    """One search. Its methods are called by one thread, while the searcher works in another."""

    def __init__(
        self,
        searcher: Chooser,
        problem: Problem,
        builds: BuildPool,
        lane: MeasureLane,
        ahead: Ahead,
        *,
        num_known: int,
        num_trials: int,
        stop: threading.Event,
        drain: threading.Event | None = None,
        helpers: Lanes = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`searcher` knows `num_known` trials already; the goal is `num_trials`. Once `drain` is set, the pipeline ends
        when the candidate on the card has its outcome. `helpers` provides further lanes."""
        self._searcher = searcher
        self._problem = problem
        self._builds = builds
        self._lane = lane
        self._helpers = helpers
        #: Helpers that failed.
        self._forsaken: list[MeasureLane] = []
        self._ahead = ahead
        self._stop = stop
        self._drain = drain or threading.Event()
        self._clock = clock
        self._patience = Patience(lane.target.id, stop)
        self._num_known = num_known
        self._num_left = num_trials - num_known
        self._is_exhausted = False
        self._is_winding_up = False
        self._unobserved: list[Trial] = []
        #: The candidates in progress, in the order in which they were chosen.
        self._travellers: list[_Traveller] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"search {lane.target.id}")
        self._choosing: Future[tuple[Candidate | None, int, float]] | None = None
        #: Work in advance for a later choice, while no choice is pending; None if none is being done.
        self._thinking: Future[bool] | None = None
        self._has_thought = False
        #: When each lane returned its last outcome, by lane.
        self._free_at: dict[int, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Drops what is in progress."""
        for one in self._travellers:
            one.preparing.cancel()
            if one.measuring is not None:
                one.measuring.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def next(self, incumbent_speedup: float | None) -> Arrival | None:
        """The next outcome; None if nothing is in progress and nothing is left to choose.

        Raises:
            JobFailed: the worker fails repeatedly.
            Quarantined: the card is not usable, and all outcomes so far were returned; the search continues when it is
                usable.
            Stopped: the service is closing.
        """
        while True:
            if self._drain.is_set():
                self.end()
            self._take_choice()
            unfit = self._note_all()
            if self._stop.is_set():  # closing may have ended the awaited call
                raise Stopped
            if (arrival := self._arrived()) is not None:
                return arrival
            if unfit is not None:
                raise unfit
            self._feed(incumbent_speedup)
            self._choose()
            pending = [future for one in self._travellers if (future := one.pending) is not None]
            if self._choosing is not None:
                pending.append(self._choosing)
            if not pending:
                return None
            if self._thinking is not None:
                pending.append(self._thinking)
            wait_for_one(pending, self._stop)

    def record(self, trial: Trial) -> None:
        """Passes a trial to the searcher before its next choice."""
        self._unobserved.append(trial)
        self._is_exhausted = False

    def wind_up(self) -> None:
        """Makes the searcher choose only what the finals still need of each kind; candidates in progress complete."""
        self._is_winding_up, self._is_exhausted = True, False

    def end(self) -> None:
        """Stops all choices, and drops candidates that have not reached the card."""
        self._num_left, self._choosing, self._thinking = 0, None, None
        for one in self._travellers:
            one.preparing.cancel()
        self._travellers = [one for one in self._travellers if one.measuring and not one.measuring.cancel()]

    def _choose(self) -> None:
        """Makes the searcher choose another candidate, if one is needed."""
        num_preparing = sum(one.pending is one.preparing for one in self._travellers)
        if (
            self._choosing is None
            and self._num_left > 0
            and not self._is_exhausted
            and len(self._travellers) < self._ahead.depth
            and num_preparing <= self._builds.num_places
            and not (self._travellers and (self._is_winding_up or self._searcher.waits_for_all))
        ):
            unobserved, self._unobserved = self._unobserved, []
            self._choosing = self._thread.submit(self._tell_and_ask, unobserved)
            self._thinking = None
        elif self._choosing is None and self._num_left > 0 and not self._is_winding_up:
            self._think_ahead()

    def _think_ahead(self) -> None:
        """Makes the searcher work in advance until the next choice."""
        if self._has_thought:
            return
        if self._thinking is not None and self._thinking.done():
            self._has_thought, self._thinking = not self._thinking.result(), None
        if self._thinking is None and not self._has_thought:
            self._thinking = self._thread.submit(self._searcher.think_ahead)

    def _tell_and_ask(self, unobserved: list[Trial]) -> tuple[Candidate | None, int, float]:
        for trial in unobserved:
            self._searcher.tell(trial)
        self._num_known += len(unobserved)
        if self._is_winding_up:
            self._searcher.wind_up()
        return self._searcher.ask(), self._num_known, self._clock()

    def _take_choice(self) -> None:
        """Submits the chosen candidate to the build pool."""
        if self._choosing is None or not self._choosing.done():
            return
        candidate, num_known, chosen_at = self._choosing.result()
        self._choosing, self._has_thought = None, False
        if candidate is None:
            # Until another trial shows what to vary, which may have been recorded since the search was asked.
            self._is_exhausted = not self._unobserved
            return
        self._num_left -= 1
        preparing = self._builds.prepare(self._problem, candidate)
        self._travellers.append(
            _Traveller(
                candidate=candidate,
                num_known=num_known,
                chosen_at=chosen_at,
                preparing=preparing,
            )
        )

    def _note_all(self) -> Quarantined | None:
        """Updates all candidates; returns why the card was quarantined, if it was. Outcomes from before the quarantine
        are still recorded as trials."""
        unfit = None
        for one in self._travellers:
            try:
                self._note_progress(one)
            except Quarantined as error:
                unfit = error
        return unfit

    def _note_progress(self, one: _Traveller) -> None:
        """Updates a candidate."""
        if one.pending is None or not one.pending.done():
            return
        try:
            if one.measuring is not None:
                self._note_measured(one, one.measuring.result())
            else:
                self._note_prepared(one, one.preparing.result())
        except WorkerError as error:
            if one.lane is None or one.lane is self._lane:
                self._patience.failed(error)
            else:
                _log.warning("a helper card failed, and is no longer used: %s", error)
                self._forsaken.append(one.lane)
            if one.measuring is not None:
                one.measuring = None
            else:
                one.preparing = self._builds.prepare(self._problem, one.candidate)

    def _note_prepared(self, one: _Traveller, preparation: Preparation) -> None:
        self._ahead.saw_made(sum(preparation.stage_s.values()))
        if isinstance(preparation, Prepared):
            one.prepared = preparation
        else:
            one.outcome = preparation

    def _note_measured(self, one: _Traveller, outcome: Outcome) -> None:
        is_own = one.lane is self._lane
        free_at = self._free_at.get(id(one.lane), 0.0)
        card_s = max(0.0, one.done_at - max(one.sent_at, free_at))
        self._free_at[id(one.lane)] = max(free_at, one.done_at)
        if (
            one.candidate.plan_kind.is_ours and card_s > 0
        ):  # the library's trial includes the start of the card's process
            self._ahead.saw_measured(card_s)
        if is_own and one.is_to_be_repeated(outcome):
            _log.warning("the library's trial is measured again: %s", getattr(outcome, "reason", ""))
            one.measuring = None
        elif is_own:
            self._patience.worked()
            one.outcome, one.card_s = outcome, card_s
        elif isinstance(outcome, Measured):
            one.outcome = by_helper(outcome)
        else:
            one.measuring, one.is_own = None, True

    def _arrived(self) -> Arrival | None:
        """The earliest chosen candidate that has its outcome, which is removed; None if there is none."""
        for one in self._travellers:
            if one.outcome is not None:
                self._travellers.remove(one)
                outcome = with_forecast(one.outcome, one.prepared.forecast_us if one.prepared else None)
                return Arrival(
                    candidate=one.candidate,
                    outcome=outcome,
                    num_known=one.num_known,
                    chosen_at=one.chosen_at,
                    card_s=one.card_s,
                    lane=one.lane,
                )
            if not one.candidate.plan_kind.is_ours:
                return None
        return None

    def _feed(self, incumbent_speedup: float | None) -> None:
        """Sends ready candidates to the lane, in order of choice."""
        helpers = [lane for lane in self._helpers() if lane not in self._forsaken]
        self._ahead.num_lanes = 1 + len(helpers)
        in_lane = Counter(id(one.lane) for one in self._travellers if one.measuring is not None)
        for one in self._travellers:
            if one.prepared and not one.measuring and not one.outcome:
                needs_own = one.is_own or not one.candidate.plan_kind.is_ours
                lanes = [self._lane] if needs_own else [self._lane, *helpers]
                lane = min(lanes, key=lambda lane: in_lane[id(lane)])
                if in_lane[id(lane)] < IN_LANE:
                    self._send(one, one.prepared, incumbent_speedup, lane)
                    in_lane[id(lane)] += 1
            if not one.candidate.plan_kind.is_ours:
                return

    def _send(self, one: _Traveller, prepared: Prepared, incumbent_speedup: float | None, lane: MeasureLane) -> None:
        def note_end(_: Future[Outcome]) -> None:
            one.done_at = time.monotonic()

        one.sent_at = time.monotonic()
        one.lane, one.measuring = lane, lane.measure(self._problem, prepared, incumbent_speedup)
        one.measuring.add_done_callback(note_end)


def end_if_due(pipeline: Pipeline, progress: Progress, left_s: float) -> None:
    """Stops all choices if time runs out, and new ones after too long without progress."""
    if left_s <= 0:
        pipeline.end()
    elif progress.is_over:
        pipeline.wind_up()
