"""Figures of the running service for Prometheus. No label contains a shape, so the number of series depends only on the
number of cards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import Failed, Measured, Rejected
from tuner.dispatch import Dispatcher
from tuner.dispatch.machine import CardReading, machine_cards
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.jobs import jobs

disable_created_metrics()  # type: ignore[no-untyped-call]  # an additional series for each counter, which nobody uses

#: The content type of `Metrics.text`.
CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Limits of the histogram's buckets, seconds: from the duration of a proof to that of a build that reaches its
#: deadline.
_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: Maximum number of stages with their own series.
_MAX_STAGES = 64


class Observer(Protocol):
    """Called in the runner's thread for every recorded trial; must neither wait nor raise."""

    def saw_trial(self, job_id: str, target_id: str, worker: int, trial: Trial) -> None:
        """A trial was recorded."""
        ...


@dataclass(frozen=True, kw_only=True)
class CardWork:
    """What a card has done since this process began."""

    #: Time since this process began.
    seconds: float
    #: Time for which the card was busy.
    busy_s: float
    #: Recorded trials by outcome.
    trials: dict[str, int]
    #: How often it was quarantined.
    num_quarantines: int


class Metrics:
    """Counters since this process started, and figures from the database at each scrape. An `Observer`; thread-safe."""

    def __init__(self, store: Store, dispatcher: Dispatcher, clock: Callable[[], float] = time.time) -> None:
        self._registry = CollectorRegistry()
        self._began_at = time.monotonic()
        card = ("target", "worker")
        self._trials = Counter(
            "tuner_trials", "Recorded trials by outcome", (*card, "outcome"), registry=self._registry
        )
        self._failures = Counter(
            "tuner_failures",
            "Failed trials by kind; after a hang, a crash or a memory fault, a process was killed or replaced",
            (*card, "kind"),
            registry=self._registry,
        )
        self._stages = Histogram(
            "tuner_stage_seconds", "Time that trials spent in a stage", ("target", "stage"), buckets=_BUCKETS_S,
            registry=self._registry,
        )  # fmt: skip
        self._stage_names: set[str] = set()
        self._busy = Counter(
            "tuner_card_busy_seconds", "Time in which a card was busy; its rate is the busy share", card,
            registry=self._registry,
        )  # fmt: skip
        self._quarantines = Counter(
            "tuner_quarantines", "How often a card was quarantined", card, registry=self._registry
        )
        self._registry.register(_Stock(store, dispatcher, clock))

    def text(self) -> bytes:
        """All figures in Prometheus format."""
        return generate_latest(self._registry)

    def card(self, target_id: str, worker: int) -> CardWork:
        """What a card has done since this process began."""
        labels = {"target": target_id, "worker": str(worker)}

        def value(name: str, **more: str) -> float:
            return self._registry.get_sample_value(name, {**labels, **more}) or 0.0

        outcomes = {kind: int(value("tuner_trials_total", outcome=kind)) for kind in ("measured", "rejected", "failed")}
        return CardWork(
            seconds=time.monotonic() - self._began_at,
            busy_s=value("tuner_card_busy_seconds_total"),
            trials=outcomes,
            num_quarantines=int(value("tuner_quarantines_total")),
        )

    def saw_trial(self, job_id: str, target_id: str, worker: int, trial: Trial) -> None:
        """Counts a recorded trial."""
        match trial.outcome:
            case Measured():
                kind = "measured"
            case Rejected():
                kind = "rejected"
            case Failed():
                kind = "failed"
                self._failures.labels(target_id, str(worker), str(trial.outcome.kind)).inc()
        self._trials.labels(target_id, str(worker), kind).inc()
        for stage, seconds in trial.outcome.stage_s.items():
            self._stages.labels(target_id, self._known_stage(stage)).observe(seconds)

    def _known_stage(self, stage: str) -> str:
        """The stage's label. The number of stages is limited, since each is a permanent series."""
        if len(self._stage_names) < _MAX_STAGES:
            self._stage_names.add(stage)
        return stage if stage in self._stage_names else "other"

    def saw_quarantine(self, target_id: str, worker: int) -> None:
        """Counts that a card was quarantined."""
        self._quarantines.labels(target_id, str(worker)).inc()

    def busy_clock(self, target_id: str, worker: int) -> BusyClock:
        """Returns a clock that adds up the time for which a card is busy. From now on the card has series, even if they
        are zero."""
        self._quarantines.labels(target_id, str(worker))
        counter = self._busy.labels(target_id, str(worker))
        return BusyClock(counter.inc)


class BusyClock:
    """Adds up how long a queue of calls was busy, by the monotonic clock; queued calls run one at a time."""

    def __init__(self, add: Callable[[float], Any]) -> None:
        self._add = add
        self._lock = threading.Lock()
        self._free_at = 0.0

    def watch(self, future: Future[Any]) -> None:
        """Counts the time until `future` is done, except the time already counted for the previous call."""
        sent_at = time.monotonic()

        def note_end(done: Future[Any]) -> None:
            if done.cancelled():
                return
            with self._lock:
                now = time.monotonic()
                busy_s, self._free_at = now - max(sent_at, self._free_at), now
            self._add(max(0.0, busy_s))

        future.add_done_callback(note_end)


def _readings(cards: Sequence[CardReading]) -> Iterator[Metric]:
    """The driver's readings of this machine's cards, labelled with the cards' numbers."""
    figures = (
        ("tuner_card_temperature_celsius", "Temperature of a card in this machine", "temperature_c"),
        ("tuner_card_sm_clock_mhz", "Clock of its SMs", "sm_clock_mhz"),
        ("tuner_card_power_watts", "What it draws", "power_w"),
    )
    for name, words, field in figures:
        gauge = GaugeMetricFamily(name, words, labels=("card",))
        for number, card in enumerate(cards):
            if (value := getattr(card, field)) is not None:
                gauge.add_metric([str(number)], value)
        yield gauge


class _Stock(Collector):
    """Current values, queried from the database and the dispatcher at each scrape."""

    def __init__(self, store: Store, dispatcher: Dispatcher, clock: Callable[[], float]) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._clock = clock

    def describe(self) -> list[Metric]:
        """Empty, so that the database is not queried before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The current figures; if the database does not respond, without those from the database."""
        is_up = GaugeMetricFamily("tuner_database_up", "Whether the database responds")
        try:
            with self._store.read() as session:
                counts, oldest = jobs.counts_by_state(session), jobs.oldest_queued(session)
            is_up.add_metric([], 1)
            yield from self._jobs(counts, oldest)
        except StoreError:
            is_up.add_metric([], 0)
        yield is_up
        sick = GaugeMetricFamily(
            "tuner_card_quarantined", ("Whether a card is unusable now"), labels=("target", "worker")
        )
        for target in self._dispatcher.targets:
            for worker in range(self._dispatcher.num_workers(target.id)):
                sick.add_metric([target.id, str(worker)], self._dispatcher.quarantine(target.id, worker) is not None)
        yield sick
        yield from _readings(machine_cards())

    def _jobs(self, counts: dict[tuple[str, str], int], oldest: dict[str, float]) -> Iterator[Metric]:
        states = GaugeMetricFamily("tuner_jobs", "Jobs by state", labels=("target", "state"))
        age = GaugeMetricFamily(
            "tuner_queue_age_seconds", ("How long the oldest queued job has waited"), labels=("target",)
        )
        targets = {target.id for target in self._dispatcher.targets} | {target for target, _ in counts}
        for target in sorted(targets):
            for state in JobState:
                states.add_metric([target, str(state)], counts.get((target, str(state)), 0))
            age.add_metric([target], max(0.0, self._clock() - oldest[target]) if target in oldest else 0.0)
        yield states
        yield age
