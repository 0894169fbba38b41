"""An unhealthy GPU: its jobs wait with a reason, and continue when a probe finds the GPU healthy again."""

from __future__ import annotations

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import Latch, SickCard, finish
from tests.support.builders import TARGET, spec
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.trial.job import JobState
from tuner.errors import WorkerError
from tuner.workers.simulated.evaluator import SimulatedEvaluator

pytestmark = pytest.mark.usefixtures("quick_probes")


@pytest.fixture
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.service.runner.probing.PROBE_PAUSES_S", (0.01, 0.02))


@pytest.mark.slow
def test_a_job_waits_with_the_reason_and_goes_on_without_a_lost_or_doubled_trial(serve: Serve) -> None:
    card = SickCard(num_trials=3)
    service = serve(card)
    first, second = service.submit(spec(16, trials=6))[0], service.submit(spec(32, trials=3))[0]
    wait_until(lambda: card.num_probes >= 3)
    for job, state in ((first, JobState.SEARCHING), (second, JobState.QUEUED)):
        found = service.job(job.id)
        assert found.state is state
        assert "it waits, since simulated:h200 is in quarantine" in found.reason
        assert "345 of 1980 MHz" in found.reason
    quarantine = service.quarantine(TARGET)
    assert quarantine is not None
    with pytest.raises(WorkerError, match="no target can measure now: simulated:h200 is in quarantine"):
        service.ready()
    card.is_fit.set()
    ended = finish(service, first)
    assert (ended.state, ended.reason, ended.num_trials) == (JobState.SUCCEEDED, "", 6)
    assert [trial.number for trial in service.trials(first.id, limit=100).items] == list(range(6))
    assert finish(service, second).state is JobState.SUCCEEDED
    assert service.quarantine(TARGET) is None
    assert service.ready() == {}


def test_a_waiting_job_can_be_cancelled_and_the_quarantine_ends_though_nobody_asks(serve: Serve) -> None:
    card = SickCard(num_trials=0)
    service = serve(card)
    job = service.submit(spec(trials=6))[0]
    wait_until(lambda: service.quarantine(TARGET) is not None)
    assert service.cancel(job.id).state is JobState.CANCELLED
    assert service.job(job.id).reason == ""
    card.is_fit.set()
    wait_until(lambda: service.quarantine(TARGET) is None)
    assert service.job(job.id).num_trials == 0


def test_one_sick_card_of_two_leaves_the_service_ready_and_says_so(serve: Serve) -> None:
    card = SickCard(num_trials=0)
    other = SimulatedEvaluator(parse_target("simulated:a100"))
    service = serve(card, other)
    service.submit(spec(trials=6))
    wait_until(lambda: service.quarantine(TARGET) is not None)
    assert list(service.ready()) == [TARGET]


@pytest.mark.slow
def test_the_job_of_a_sick_card_goes_on_with_another_card_of_its_model(serve: Serve) -> None:
    sick, well = SickCard(num_trials=2), Latch()
    service = serve(sick, well)
    first, second = service.submit(spec(16, trials=6))[0], service.submit(spec(32, trials=6))[0]
    wait_until(lambda: sick.num_probes > 0)
    well.is_open.set()
    assert {finish(service, job).state for job in (first, second)} == {JobState.SUCCEEDED}
    assert sick.num_trials == 0
    assert service.quarantine(TARGET) is None
    assert service.ready() == {}
