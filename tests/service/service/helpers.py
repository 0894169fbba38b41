"""Evaluators that deviate from the simulated one, and helpers for waiting."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.builders import TARGET
from tests.support.serving import wait_until_final
from tests.support.waiting import wait_until as wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import FinalsTimes, Prepared, Problem
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Metric, Outcome, Stage
from tuner.core.trial.records import JobRecord
from tuner.errors import Quarantined, WorkerError
from tuner.service import Service
from tuner.workers.simulated.evaluator import Faults, PreparedModel, SimulatedEvaluator


def evaluator(**options: Any) -> SimulatedEvaluator:
    return SimulatedEvaluator(parse_target(TARGET), **options)


def candidate_of(prepared: Prepared) -> Candidate:
    """The candidate that the simulated evaluator prepared."""
    assert isinstance(prepared, PreparedModel)
    return prepared.candidate


class FailingKinds(SimulatedEvaluator):
    """Every candidate of some plan kinds fails."""

    def __init__(self, *kinds: PlanKind, in_finals: bool = False) -> None:
        super().__init__(parse_target(TARGET), faults=Faults(hang=0, crash=0, wrong_numbers=0))
        self.kinds = kinds
        self.in_finals = in_finals

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        if candidate_of(prepared).plan_kind in self.kinds and not self.in_finals:
            return Failed(stage=Stage.CHECK, kind=FailureKind.WRONG_NUMBERS, reason="element (0, 0) is wrong")
        return super().measure(problem, prepared, *incumbent)

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **asked: Any) -> FinalsTimes:
        times = super().finals(problem, candidates, **asked)
        lost = [self.in_finals and candidate.plan_kind in self.kinds for candidate in candidates]
        return FinalsTimes(
            times_us=tuple(None if gone else row for gone, row in zip(lost, times.times_us, strict=True)),
            reasons=tuple("it hung" if gone else "" for gone in lost),
            process_of_round=times.process_of_round,
        )


class DyingChild(SimulatedEvaluator):
    """The GPU's process dies during the library's trial, the first `num_deaths` times."""

    def __init__(self, num_deaths: int) -> None:
        super().__init__(parse_target(TARGET), faults=Faults(hang=0, crash=0, wrong_numbers=0))
        self.num_deaths = num_deaths

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        if candidate_of(prepared).plan_kind is PlanKind.LIBRARY and self.num_deaths > 0:
            self.num_deaths -= 1
            return Failed(stage=Stage.LAUNCH, kind=FailureKind.CRASH, reason="the GPU process died (signal 9)")
        return super().measure(problem, prepared, *incumbent)


class FailingWorker(SimulatedEvaluator):
    """The worker itself fails, the first `num_failures` times."""

    def __init__(self, num_failures: int) -> None:
        super().__init__(parse_target(TARGET))
        self.num_failures = num_failures

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        if self.num_failures > 0:
            self.num_failures -= 1
            raise WorkerError("the card does not answer")
        return super().measure(problem, prepared, *incumbent)


class SickCard(SimulatedEvaluator):
    """Enters quarantine after a given number of trials, until it is `fit` again."""

    def __init__(self, num_trials: int, **options: Any) -> None:
        super().__init__(parse_target(TARGET), **options)
        self.num_trials = num_trials
        self.is_fit = threading.Event()
        self.num_probes = 0

    def probe(self) -> None:
        self.num_probes += 1
        if not self.is_fit.is_set():
            raise Quarantined("its SMs run at 345 of 1980 MHz under load")

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        if self.num_trials == 0 and not self.is_fit.is_set():
            raise Quarantined("the known-good kernel computed wrong results")
        self.num_trials -= 1
        return super().measure(problem, prepared, *incumbent)


class SharedCard(SimulatedEvaluator):
    """Another process computes on the GPU while the library is timed."""

    def __init__(self) -> None:
        super().__init__(parse_target(TARGET))

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        outcome = super().measure(problem, prepared, *incumbent)
        if not isinstance(outcome, Measured):
            return outcome
        seen = Metric(tag="foreign_processes", unit="", value=not candidate_of(prepared).plan_kind.is_ours)
        return replace(outcome, metrics=(*outcome.metrics, seen))


class Latch(SimulatedEvaluator):
    """Measures `num_free` candidates, then waits until it is opened, so that a job stays in a known state on a busy
    machine."""

    def __init__(self, num_free: int = 0, **options: Any) -> None:
        super().__init__(parse_target(TARGET), **options)
        self.num_free = num_free
        self.is_open = threading.Event()
        self.is_reached = threading.Event()

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        if self.num_free > 0:
            self.num_free -= 1
            return super().measure(problem, prepared, *incumbent)
        self.is_reached.set()
        self.is_open.wait(120)
        return super().measure(problem, prepared, *incumbent)

    def close(self) -> None:
        self.is_open.set()


def on_disk(directory: Path, query: str) -> object:
    """The single value that `query` returns, read while a server is running."""
    with closing(sqlite3.connect(f"file:{directory / 'tuner.db'}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchone()[0]


def finish(service: Service, job: JobRecord) -> JobRecord:
    wait_until_final(service, job.id)
    return service.job(job.id)
