"""Two GPUs of one model and one job: the GPU without a job measures for the other's search."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import candidate_of, finish
from tests.support.builders import TARGET, spec
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import FinalsTimes, Prepared, Problem
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome, Stage
from tuner.core.trial.records import JobRecord
from tuner.errors import WorkerError
from tuner.service import Service
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

NO_FAULTS = Faults(hang=0, crash=0, wrong_numbers=0)
#: Duration of a measurement, seconds: longer than a choice, so that a search waits for the card.
LATENCY_S = 0.1


class Noting(SimulatedEvaluator):
    """Records what it measured, and the workloads of its finals."""

    def __init__(self, target: str = TARGET, latency_s: float = LATENCY_S) -> None:
        super().__init__(parse_target(target), faults=NO_FAULTS, latency_s=latency_s)
        self.measured: list[tuple[int, Candidate]] = []
        self.finals_of: list[int] = []

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        self.measured.append((problem.workload.tile_ops[0].m, candidate_of(prepared)))
        return super().measure(problem, prepared, *incumbent)

    def finals(self, problem: Problem, candidates: tuple[Candidate, ...], **asked: Any) -> FinalsTimes:
        self.finals_of.append(problem.workload.tile_ops[0].m)
        return super().finals(problem, candidates, **asked)


class GoodAlone(Noting):
    """Works only for the job whose library it measured."""

    def __init__(self, what: Exception | Outcome) -> None:
        super().__init__()
        self.what = what
        self.is_own = False

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        self.is_own |= candidate_of(prepared).schedule is None
        outcome = super().measure(problem, prepared, *incumbent)
        if self.is_own:
            return outcome
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


def trials_of(service: Service, job: JobRecord) -> list[Trial]:
    return list(service.trials(job.id, limit=500).items)


def helped(trials: Collection[Trial]) -> set[Candidate]:
    """The trials that the other GPU measured."""
    return {
        trial.candidate
        for trial in trials
        if isinstance(trial.outcome, Measured) and any(one.tag == "by_helper" for one in trial.outcome.metrics)
    }


def first_and_other(cards: tuple[Noting, Noting]) -> tuple[Noting, Noting]:
    """The GPU that ran the library's trial, and the other one."""
    first = next(card for card in cards if any(one.schedule is None for _, one in card.measured))
    return first, next(card for card in cards if card is not first)


@pytest.mark.slow
def test_a_card_without_a_job_measures_for_the_other_ones_search(serve: Serve) -> None:
    cards = Noting(), Noting()
    service = serve(*cards, num_places=4)
    job = finish(service, service.submit(spec(trials=32))[0])
    trials = trials_of(service, job)
    assert (job.state, [trial.number for trial in trials]) == (JobState.SUCCEEDED, list(range(32)))
    assert len({trial.candidate for trial in trials}) == 32
    own, other = first_and_other(cards)
    assert sorted(str(one) for _, one in own.measured + other.measured) == sorted(str(one.candidate) for one in trials)
    assert helped(trials) == {candidate for _, candidate in other.measured}
    assert len(other.measured) >= 8, "it measures about half of the candidates"
    assert (own.finals_of, other.finals_of) == ([16], []), "one card measures all finalists"
    counted = [work.work.trials for work in service.fleet.workers()]
    assert sorted(one["measured"] for one in counted) == sorted(len(card.measured) for card in cards)


# In CI, tests/unit/service/test_runner.py takes it back.
@pytest.mark.soak
def test_a_job_of_its_own_takes_the_helper_back(serve: Serve) -> None:
    cards = Noting(), Noting()
    service = serve(*cards, num_places=4)
    first = service.submit(spec(16, trials=200))[0]
    wait_until(lambda: all(len(card.measured) > 3 for card in cards))
    own, other = first_and_other(cards)
    second = finish(service, service.submit(spec(32, trials=12))[0])
    assert second.state is JobState.SUCCEEDED
    assert other.finals_of == [32]
    rows = [m for m, _ in other.measured]
    begin, end = rows.index(32), len(rows) - 1 - rows[::-1].index(32)
    assert 16 not in rows[begin:end], "between its own trials, it measures for no other search"
    assert service.cancel(first.id).state is JobState.CANCELLED
    assert 32 not in [m for m, _ in own.measured]


# In CI, tests/unit/service/test_pipeline.py does so without cards.
@pytest.mark.soak
@pytest.mark.parametrize(
    "what",
    [
        WorkerError("the card does not answer"),
        Failed(stage=Stage.LAUNCH, kind=FailureKind.CRASH, reason="the card holds 30 clusters of four"),
    ],
    ids=["worker", "candidate"],
)
def test_what_a_helper_cannot_measure_the_jobs_own_card_does(serve: Serve, what: Exception | Outcome) -> None:
    cards = GoodAlone(what), GoodAlone(what)
    service = serve(*cards, num_places=4)
    job = finish(service, service.submit(spec(trials=16))[0])
    trials = trials_of(service, job)
    assert (job.state, [trial.number for trial in trials]) == (JobState.SUCCEEDED, list(range(16)))
    assert all(isinstance(trial.outcome, Measured) for trial in trials)
    assert not helped(trials)
    own, other = first_and_other(cards)
    assert len(own.measured) == 16
    assert other.measured, "the case tests nothing"
    if isinstance(what, Exception):
        assert len(other.measured) <= 2, "it gets no further requests"


def test_a_card_of_another_model_does_not_help(serve: Serve) -> None:
    own, other = Noting(), Noting("simulated:a100")
    service = serve(own, other, num_places=4)
    job = finish(service, service.submit(spec(trials=12))[0])
    assert (job.state, len(own.measured), other.measured) == (JobState.SUCCEEDED, 12, [])
