"""Cards without a job measure for the search of another card of the same model.

A candidate's figure is its ratio to the library on the card that measured it, so cards of one model can share a search.
The library's trial and the finals run on the job's own card.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tuner.core.trial.outcome import Measured, Metric, Outcome
from tuner.dispatch import MeasureLane
from tuner.errors import WorkerError

#: The lanes that currently help a search.
Lanes = Callable[[], Sequence[MeasureLane]]


class Helpers:
    """Which lanes are free to help, and which search uses each. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: list[MeasureLane] = []
        #: The job that a lane helps, by the lane's identity.
        self._jobs: dict[int, str] = {}

    def lend(self, lane: MeasureLane) -> None:
        """The lane's runner is idle."""
        with self._lock:
            if lane not in self._lent:
                self._lent.append(lane)

    def withdraw(self, lane: MeasureLane) -> None:
        """The lane's runner has work again. Calls already queued in the lane are still measured."""
        with self._lock:
            if lane in self._lent:
                self._lent.remove(lane)
                self._jobs.pop(id(lane), None)

    @contextmanager
    def for_job(self, job_id: str, own: MeasureLane) -> Iterator[Lanes]:
        """The lanes that help a job, for the duration of the block: each free one whose card is like the job's own."""

        def lanes() -> tuple[MeasureLane, ...]:
            with self._lock:
                for lane in self._lent:
                    if id(lane) not in self._jobs and _are_alike(lane, own):
                        self._jobs[id(lane)] = job_id
                return tuple(lane for lane in self._lent if self._jobs.get(id(lane)) == job_id)

        try:
            yield lanes
        finally:
            with self._lock:
                self._jobs = {lane: job for lane, job in self._jobs.items() if job != job_id}


def _are_alike(one: MeasureLane, other: MeasureLane) -> bool:
    """Whether both lanes report the same model, driver, kernels and kinds of ops, and the first one may be used."""
    try:
        is_free = one.target == other.target and one.quarantine is None
        return is_free and one.kinds == other.kinds and one.environment() == other.environment()
    except WorkerError:
        return False


def by_helper(outcome: Outcome) -> Outcome:
    """`outcome` with a note that a card other than the job's own measured it."""
    if not isinstance(outcome, Measured):
        return outcome
    return replace(outcome, metrics=(*outcome.metrics, Metric(tag="by_helper", unit="", value=1)))
