"""Several candidates in flight: the GPU stays busy, and each candidate is treated as if it were alone."""

from __future__ import annotations

import threading
import time

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import FailingKinds, Latch, SickCard, candidate_of, evaluator, finish
from tests.support.builders import TARGET, rejected, spec
from tests.support.repeats import REPEATS
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Preparation, Prepared, Problem
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import Outcome, Rejected
from tuner.core.trial.records import JobRecord
from tuner.errors import WorkerError
from tuner.search import Searcher
from tuner.service import Service
from tuner.workers.simulated.evaluator import SimulatedEvaluator

pytestmark = pytest.mark.slow


class Slow(SimulatedEvaluator):
    """Builds slowly and measures quickly, and records how many builds and measurements ran concurrently.

    No build ends before `together` of them have run concurrently: on a busy machine, the search may choose more slowly
    than builds end.
    """

    def __init__(self, build_s: float = 0.15, latency_s: float = 0.03, together: int = 1) -> None:
        super().__init__(parse_target(TARGET), build_s=build_s, latency_s=latency_s)
        self.lock = threading.Lock()
        self.together, self.are_together = together, threading.Event()
        self.num_building = self.most_building = 0
        self.idle_s: list[float] = []
        self.measured: list[Candidate] = []
        self._free_at = 0.0

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        with self.lock:
            self.num_building += 1
            self.most_building = max(self.most_building, self.num_building)
            if self.most_building >= self.together:
                self.are_together.set()
        self.are_together.wait(60)
        preparation = super().prepare(problem, candidate)
        with self.lock:
            self.num_building -= 1
        return preparation

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        self.measured.append(candidate_of(prepared))
        self.idle_s.append(time.monotonic() - self._free_at)
        outcome = super().measure(problem, prepared, *incumbent)
        self._free_at = time.monotonic()
        return outcome


def trials_of(service: Service, job: JobRecord) -> list[Trial]:
    return list(service.trials(job.id, limit=500).items)


def replay(job: JobRecord, trials: list[Trial]) -> list[Candidate | None]:
    """The choices of a searcher that learns of the trials when the job's searcher did."""
    gpu = parse_target(job.spec.target_id).gpu
    searcher = Searcher(Space(job.spec.workload, gpu), seed=job.spec.seed, num_trials=job.spec.budget.trials)
    chosen, num_known = list[Candidate | None](), 0
    for trial in sorted(trials, key=lambda trial: trial.started_at):
        for known in trials[num_known : trial.num_known]:
            searcher.tell(known)
        num_known = trial.num_known
        chosen.append(searcher.ask())
    return chosen


def test_builds_run_ahead_of_the_card_and_a_job_can_be_replayed_from_its_trials(serve: Serve) -> None:
    slow = Slow(together=3)
    service = serve(slow, num_places=4)
    job = finish(service, service.submit(spec(trials=28))[0])
    trials = trials_of(service, job)
    assert (job.state, len(trials)) == (JobState.SUCCEEDED, 28)
    assert len({trial.candidate for trial in trials}) == 28
    assert 3 <= slow.most_building <= 6
    assert trials[0].candidate.plan_kind is PlanKind.LIBRARY
    assert all(trial.num_known <= trial.number for trial in trials)
    num_behind = [trial.number - trial.num_known for trial in trials]
    assert max(num_behind) >= 2, "some were chosen while others were in flight"
    assert replay(job, trials) == [trial.candidate for trial in sorted(trials, key=lambda trial: trial.started_at)]


# In CI, tests/unit/service/test_runner.py chooses nothing ahead.
@pytest.mark.soak
def test_one_by_one_every_candidate_is_chosen_with_all_before_it_known(serve: Serve) -> None:
    slow = Slow(build_s=0.01, latency_s=0.0)
    service = serve(slow, num_places=4, max_ahead=0)
    job = finish(service, service.submit(spec(trials=20))[0])
    assert [trial.num_known for trial in trials_of(service, job)] == list(range(20))
    assert slow.most_building == 1


# In CI, tests/unit/service/test_pipeline.py has choices that wait.
@pytest.mark.soak
def test_the_last_trials_of_a_budget_are_chosen_when_all_before_them_are_known(serve: Serve) -> None:
    service = serve(Slow(together=3), num_places=4)
    job = finish(service, service.submit(spec(trials=40))[0])
    known = [trial.num_known for trial in sorted(trials_of(service, job), key=lambda trial: trial.started_at)]
    first = 40 - len(REPEATS)
    assert known[first] == first, "nothing was in flight when the repeats of the best began"
    assert any(known[number] < number for number in range(first)), "before, some were"


class SlowLibrary(Slow):
    """The library is prepared after one of our candidates, which is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.has_refused = threading.Event()

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        if not candidate.plan_kind.is_ours:
            self.has_refused.wait(60)
        elif not self.measured:
            self.has_refused.set()
            return rejected()
        return super().prepare(problem, candidate)


def test_nothing_overtakes_the_library_and_a_refusal_is_a_trial(serve: Serve) -> None:
    service = serve(SlowLibrary(), num_places=4)
    job = finish(service, service.submit(spec(trials=24))[0])
    trials = trials_of(service, job)
    assert trials[0].candidate.plan_kind is PlanKind.LIBRARY
    assert isinstance(trials[1].outcome, Rejected)
    assert job.num_rejected >= 1


class FailingBuilds(Slow):
    """The build machines fail a given number of times."""

    def __init__(self, num_failures: int) -> None:
        super().__init__()
        self.num_failures = num_failures

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        with self.lock:
            self.num_failures -= 1
            if self.num_failures >= 0:
                raise WorkerError("the build machine was lost")
        return super().prepare(problem, candidate)


# In CI, tests/unit/service/test_pipeline.py has lost workers.
@pytest.mark.soak
@pytest.mark.parametrize(("num_failures", "state"), [(2, JobState.SUCCEEDED), (1000, JobState.FAILED)])
def test_a_build_machine_that_comes_back_costs_no_trial_and_one_that_stays_away_fails_the_job(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, num_failures: int, state: JobState
) -> None:
    monkeypatch.setattr("tuner.service.concurrency.waiting.RETRY_PAUSES_S", (0.01, 0.01))
    service = serve(FailingBuilds(num_failures), num_places=4)
    job = finish(service, service.submit(spec(trials=18))[0])
    assert job.state is state
    if state is JobState.FAILED:
        assert "failed 3 times: the build machine was lost" in job.reason
    else:
        assert (job.num_trials, job.num_failed + job.num_measured + job.num_rejected) == (18, 18)


# In CI, test_jobs.py cancels a job, and test_kill.py kills a server with several on their way.
@pytest.mark.soak
def test_a_job_that_is_cancelled_with_several_on_their_way_records_none_of_them_and_the_next_one_runs(
    serve: Serve,
) -> None:
    latch = Latch(build_s=0.05)
    service = serve(latch, num_places=4)
    first, second = service.submit(spec(16, trials=60))[0], service.submit(spec(32, trials=3))[0]
    assert latch.is_reached.wait(60)
    time.sleep(0.3)
    assert service.cancel(first.id).state is JobState.CANCELLED
    latch.is_open.set()
    ended = finish(service, second)
    assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, 3)
    assert service.job(first.id).num_trials == 0


# In CI, tests/unit/service/test_pipeline.py has a quarantine, and test_quarantine.py a job that goes on.
@pytest.mark.soak
def test_a_quarantine_with_several_on_their_way_loses_and_doubles_no_trial(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.runner.probing.PROBE_PAUSES_S", (0.01, 0.02))
    card = SickCard(num_trials=9, build_s=0.05)
    service = serve(card, num_places=4)
    job = service.submit(spec(trials=36))[0]
    wait_until(lambda: card.num_probes >= 2)
    # Candidates finished before the quarantine are trials; those in progress are not, and are chosen again.
    waiting = service.job(job.id)
    assert waiting.num_trials - waiting.num_rejected == 9
    card.is_fit.set()
    ended = finish(service, job)
    assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, 36)
    trials = trials_of(service, job)
    assert [trial.number for trial in trials] == list(range(36))
    assert len({trial.candidate for trial in trials}) == 36


# In CI, test_kill.py kills a server with several on their way.
@pytest.mark.soak
def test_closing_with_several_on_their_way_loses_nothing_and_takes_no_longer_than_what_runs(serve: Serve) -> None:
    service = serve(Slow(build_s=0.3), num_places=4)
    job, _ = service.submit(spec(trials=28))
    wait_until(lambda: service.job(job.id).num_trials >= 5)
    begin_s = time.monotonic()
    service = serve(evaluator(), num_places=4)
    assert time.monotonic() - begin_s < 30
    ended = finish(service, job)
    trials = trials_of(service, job)
    assert (ended.state, len({trial.candidate for trial in trials})) == (JobState.SUCCEEDED, 28)


def test_a_budget_of_seconds_drops_what_has_not_reached_the_card(serve: Serve) -> None:
    slow = Slow(latency_s=0.1)
    service = serve(slow, num_places=8)
    job = finish(service, service.submit(spec(trials=1000, seconds=1.0))[0])
    assert job.state is JobState.SUCCEEDED
    assert len(slow.measured) == job.num_trials, "all measurements were recorded"


# In CI, tests/unit/service/test_pipeline.py has failures.
@pytest.mark.soak
def test_where_all_of_ours_fail_at_the_card_the_search_goes_on_to_the_end_of_its_budget(serve: Serve) -> None:
    service = serve(FailingKinds(*(kind for kind in PlanKind if kind.is_ours)), num_places=4)
    job = finish(service, service.submit(spec(trials=16))[0])
    assert (job.state, job.num_failed + job.num_rejected) == (JobState.SUCCEEDED, 15)
