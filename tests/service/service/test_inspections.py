"""Inspections: of finalists automatically, and of any trial on request; they never delay a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import FailingKinds, Latch, evaluator, finish, on_disk
from tests.support.builders import TARGET, measured, spec, trial
from tests.support.lanes import soaked
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import Inspection, InspectionKind, InspectionState
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace, no_energy
from tuner.dispatch import LocalDispatcher
from tuner.errors import Conflict, InvalidInput, NotFound, PlanError, WorkerError
from tuner.service import Service
from tuner.service.concurrency.claims import Claims
from tuner.service.concurrency.retrying import RetryingWriter
from tuner.service.inspections import Inspector
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import inspections, trials
from tuner.workers.simulated.evaluator import SimulatedEvaluator

COUNTERS, ENERGY, TRACE = InspectionKind.COUNTERS, InspectionKind.ENERGY, InspectionKind.TRACE


class FailingEye(SimulatedEvaluator):
    """Counting raises `error` the first `num_failures` times."""

    def __init__(self, error: Exception, num_failures: int = 1000) -> None:
        super().__init__(parse_target(TARGET))
        self.error = error
        self.num_failures = num_failures
        self.num_calls = 0

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise self.error
        return super().count(problem, candidate, metrics)


class SlowEye(Latch):
    """Counts when released; measures the first ones freely, and the others after it is opened."""

    def __init__(self, num_free: int = 1000) -> None:
        super().__init__(num_free)
        self.is_counting = threading.Event()
        self.may_count = threading.Event()

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> CounterReport:
        self.is_counting.set()
        self.may_count.wait(120)
        return super().count(problem, candidate, metrics)

    def close(self) -> None:
        super().close()
        self.may_count.set()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses."""
    monkeypatch.setattr("tuner.service.inspections.RETRY_PAUSE_S", 0.01)


def ended(service: Service, job_id: str, number: int, kind: InspectionKind) -> Inspection:
    wait_until(lambda: service.inspection(job_id, number, kind).state is not InspectionState.PENDING)
    return service.inspection(job_id, number, kind)


def succeeded(service: Service, trials: int = 6, m: int = 16) -> str:
    job = finish(service, service.submit(spec(m, trials=trials))[0])
    assert job.state is JobState.SUCCEEDED
    return job.id


@pytest.mark.slow
def test_the_finalists_of_a_job_are_inspected_after_its_verdict(serve: Serve) -> None:
    service = serve()
    job_id = succeeded(service, trials=25)
    finals = service.best(job_id).finals
    timed = sorted((row.time_us, row.trial_number, row.candidate.plan_kind) for row in finals if row.time_us)
    best = {kind: number for _, number, kind in reversed(timed)}
    asked = {(inspection.trial_number, inspection.kind) for inspection in service.inspections(job_id, range(25))}
    assert asked == {
        *((number, ENERGY) for _, number, _ in timed),
        *((number, COUNTERS) for number in best.values()),
        *((number, TRACE) for kind, number in best.items() if kind.is_ours),
    }
    for number, kind in asked:
        inspection = ended(service, job_id, number, kind)
        assert (inspection.state, inspection.reason, inspection.metrics) == (InspectionState.DONE, "", None)
        assert inspection.figures
        assert isinstance(inspection.result, {COUNTERS: CounterReport, ENERGY: EnergyReport, TRACE: Trace}[kind])
        if isinstance(inspection.result, Trace):
            assert inspection.result.simulated
            assert {figure.tag for figure in inspection.figures} >= {
                "wait_share.up",
                "compute_share.down",
                "tail_share",
            }
        if isinstance(inspection.result, EnergyReport):
            row = next(row for row in service.best(job_id).finals if row.trial_number == number)
            assert row.energy_mj == inspection.result.run_mj, "the result has it, too"


class SlowScales(SimulatedEvaluator):
    """Measures an energy when released; never the library's."""

    def __init__(self) -> None:
        super().__init__(parse_target(TARGET))
        self.may_weigh = threading.Event()

    def energy(self, problem: Problem, candidate: Candidate) -> EnergyReport:
        self.may_weigh.wait(120)
        return super().energy(problem, candidate) if candidate.plan_kind.is_ours else no_energy("it counts none")

    def close(self) -> None:
        self.may_weigh.set()


# In CI, the first test finds the energies in the result.
@pytest.mark.soak
def test_a_job_has_its_verdict_before_the_energies_of_its_finalists_and_they_follow(serve: Serve) -> None:
    scales = SlowScales()
    service = serve(scales)
    job_id = succeeded(service, trials=25)
    before = service.best(job_id)
    assert {row.energy_mj for row in before.finals} == {None}
    scales.may_weigh.set()
    for row in before.finals:
        inspection = ended(service, job_id, row.trial_number, ENERGY)
        assert (inspection.state, inspection.reason) == (
            InspectionState.DONE,
            "" if row.candidate.plan_kind.is_ours else "it counts none",
        )
    library, *ours = service.best(job_id).finals
    assert library == before.finals[0]
    assert [replace(row, energy_mj=None) for row in ours] == list(before.finals[1:])
    assert all(row.energy_mj and row.energy_mj > 0 for row in ours)
    assert len({row.energy_mj for row in ours}) > 1, "each finalist has its own"


def test_figures_that_take_a_time_take_the_trials_own(serve: Serve) -> None:
    service = serve()
    job_id = succeeded(service)
    trial = next(trial for trial in service.trials(job_id).items if isinstance(trial.outcome, Measured))
    assert isinstance(trial.outcome, Measured)
    service.ask_inspection(job_id, trial.number, COUNTERS)
    figures = {figure.tag: figure.value for figure in ended(service, job_id, trial.number, COUNTERS).figures}
    workload = service.job(job_id).spec.workload
    assert figures["tensor_rate"] == pytest.approx(workload.num_flops / trial.outcome.time_us / 1e6)
    assert not any(name.endswith("_profiled") for name in figures)


@pytest.mark.slow
def test_a_job_under_way_is_inspected_between_two_trials_and_no_trial_is_lost(serve: Serve) -> None:
    eye = SlowEye(num_free=2)
    service = serve(eye)
    begun_s = time.monotonic()
    job, _ = service.submit(spec(trials=20))
    wait_until(lambda: service.job(job.id).num_trials > 1)
    inspection, is_pending = service.ask_inspection(job.id, 0, COUNTERS)
    assert (inspection.state, is_pending) == (InspectionState.PENDING, True)
    eye.is_open.set()
    assert eye.is_counting.wait(60)
    before, inspected_s = service.job(job.id), time.monotonic()
    assert before.state is JobState.SEARCHING
    time.sleep(1.0)
    assert service.job(job.id) == before, "the job continued while the GPU was used for the inspection"
    inspected_s = time.monotonic() - inspected_s
    eye.may_count.set()
    assert ended(service, job.id, 0, COUNTERS).state is InspectionState.DONE
    after = finish(service, job)
    assert (after.state, after.num_trials) == (JobState.SUCCEEDED, 20)
    assert after.search_s < time.monotonic() - begun_s - inspected_s, "the inspection was counted as search"


# In CI, tests/unit/service/test_runner.py says what goes first.
@pytest.mark.soak
def test_the_services_own_inspections_wait_until_no_job_is_open(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    first, second = (service.submit(spec(m, trials=4))[0] for m in (16, 32))
    latch.is_open.set()
    finish(service, first)
    finish(service, second)
    taken = [inspection for job in (first, second) for inspection in service.inspections(job.id, range(4))]
    for inspection in taken:
        ended(service, inspection.job_id, inspection.trial_number, inspection.kind)
    finished = [
        inspection.finished_at for job in (first, second) for inspection in service.inspections(job.id, range(4))
    ]
    last_verdict = service.job(second.id).finished_at
    assert last_verdict is not None
    assert min(at for at in finished if at) >= last_verdict


def test_counters_by_name_are_taken_in_their_own_right(serve: Serve) -> None:
    service = serve()
    job_id = succeeded(service)
    service.ask_inspection(job_id, 0, COUNTERS, ("dram__bytes_read.sum",))
    inspection = ended(service, job_id, 0, COUNTERS)
    assert inspection.metrics == ("dram__bytes_read.sum",)
    assert isinstance(inspection.result, CounterReport)
    assert "dram__bytes_read.sum" in {counter.name for counter in inspection.result.counters}
    assert service.ask_inspection(job_id, 0, COUNTERS, ("dram__bytes_read.sum",))[1] is False


def test_a_metric_that_nobody_knows_is_refused_with_what_would_be_right(serve: Serve, tmp_path: Path) -> None:
    service = serve()
    job_id = succeeded(service)
    service.ask_inspection(job_id, 0, COUNTERS, ("dram__byte_read.sum",))

    state = "select state from inspections where metrics like '%dram__byte_read%'"
    wait_until(lambda: on_disk(tmp_path / "data", state) == InspectionState.REFUSED)
    with pytest.raises(InvalidInput, match=r"^metrics: .*dram__byte_read.sum.*; .*dram__bytes_read.sum"):
        service.inspection(job_id, 0, COUNTERS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "num_calls", "reason"),
    [
        (WorkerError("the card does not answer"), 2, "the card does not answer"),
        *soaked((PlanError("a wait never ends", "task 3"), 1, "a wait never ends: task 3")),
        *soaked((ValueError("boom"), 1, "an error in the service: ValueError: boom")),
    ],
)
def test_an_inspection_that_cannot_be_taken_ends_with_its_reason_and_the_job_is_unharmed(
    serve: Serve, error: Exception, num_calls: int, reason: str
) -> None:
    eye = FailingEye(error)
    service = serve(eye)
    job_id = succeeded(service, trials=1)
    inspection = ended(service, job_id, 0, COUNTERS)
    assert (inspection.state, inspection.reason, eye.num_calls) == (InspectionState.FAILED, reason, num_calls)
    assert service.job(job_id).state is JobState.SUCCEEDED
    assert succeeded(service, m=32), "the runner goes on"


def test_a_worker_that_comes_back_is_asked_again(serve: Serve) -> None:
    eye = FailingEye(WorkerError("the card does not answer"), num_failures=1)
    service = serve(eye)
    job_id = succeeded(service, trials=1)
    assert ended(service, job_id, 0, COUNTERS).state is InspectionState.DONE
    assert eye.num_calls == 2


def test_an_inspection_that_two_processes_did_not_outlive_ends_with_that_for_its_reason(store: Store) -> None:
    target, stop = parse_target(TARGET), threading.Event()
    lane = LocalDispatcher([evaluator()]).lane(target.id)
    claims = Claims()
    inspector = Inspector(store, lane, target, claims, RetryingWriter(store, stop), stop)
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number in range(2):
            trials.record(session, job.id, trial(number, measured(5.0)), 0.0)
            inspections.ask(session, job.id, number, COUNTERS, None, is_urgent=False, now=3.0)
    with store.write() as session:
        first = inspections.next_pending(session, TARGET, urgent_only=False)
        assert first is not None
        for _ in range(2):
            inspections.begin(session, first.seq)
        other = inspections.next_pending(session, TARGET, urgent_only=False)
        assert other is not None
        assert other.trial_number == 1, "those that were not begun come first"
        inspections.refuse(session, other.seq, ("metrics", "", ""), 4.0)
    with claims.inspections.take(lambda taken: first):
        assert not inspector.take_one(), "another runner has it"
    assert inspector.take_one()
    with store.read() as session:
        found = inspections.newest(session, job.id, 0, COUNTERS)
    assert found is not None
    assert found.state is InspectionState.FAILED
    assert found.reason == "the service ended 2 times while it was being collected"
    assert not inspector.take_one()


def test_closing_in_the_middle_of_an_inspection_costs_no_attempt(serve: Serve) -> None:
    eye = SlowEye()
    service = serve(eye)
    job_id = succeeded(service, trials=1)
    assert eye.is_counting.wait(60)
    service = serve(Latch())  # closes the first one
    inspection = ended(service, job_id, 0, COUNTERS)
    assert (inspection.state, inspection.num_attempts) == (InspectionState.DONE, 1)


def test_what_does_not_run_is_not_inspected(serve: Serve) -> None:
    service = serve(FailingKinds(PlanKind.FUSED))
    job_id = succeeded(service, trials=4)
    failed = next(trial.number for trial in service.trials(job_id, outcome="failed").items)
    asks: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: service.ask_inspection(job_id, failed, COUNTERS), InvalidInput, r"not measured \(failed\): element"),
        (
            lambda: service.ask_inspection(job_id, 0, TRACE),
            InvalidInput,
            "of kind library, whose kernels cannot be traced",
        ),
        (lambda: service.ask_inspection(job_id, 4, COUNTERS), NotFound, "has no trial 4: its trials are 0 to 3"),
        (lambda: service.ask_inspection("job-0", 0, COUNTERS), NotFound, "there is no job"),
        (lambda: service.inspection(job_id, failed, COUNTERS), NotFound, "not requested"),
        (lambda: service.inspection(job_id, 4, COUNTERS), NotFound, "has no trial 4"),
    ]
    for ask, kind, words in asks:
        with pytest.raises(kind, match=words):
            ask()


def test_a_target_that_is_no_longer_served_is_reported_and_nothing_is_asked_of_it(serve: Serve) -> None:
    service = serve()
    job_id = succeeded(service, trials=1)
    ended(service, job_id, 0, COUNTERS)
    service = serve(SimulatedEvaluator(parse_target("simulated:a40")))
    with pytest.raises(Conflict, match="no worker of this server measures on simulated:h200"):
        service.ask_inspection(job_id, 0, COUNTERS, ("dram__bytes_read.sum",))


@pytest.mark.slow
def test_an_open_job_whose_target_is_gone_says_what_it_waits_for_and_goes_on_when_it_is_back(serve: Serve) -> None:
    latch = Latch()
    service = serve(latch)
    job, _ = service.submit(spec(trials=3))
    assert latch.is_reached.wait(60)
    assert service.job(job.id).reason == ""
    service = serve(SimulatedEvaluator(parse_target("simulated:a40")))
    waiting = service.job(job.id)
    assert waiting.state is JobState.SEARCHING
    assert "no worker of this server measures on simulated:h200" in waiting.reason
    assert service.jobs().items == [waiting]
    with pytest.raises(NotFound, match="no worker of this server"):
        service.best(job.id)
    service = serve(evaluator())
    assert (finish(service, job).state, service.job(job.id).reason) == (JobState.SUCCEEDED, "")


def test_a_pending_inspection_of_a_target_that_is_gone_says_so(serve: Serve) -> None:
    eye = SlowEye()
    service = serve(eye)
    job_id = succeeded(service, trials=1)
    assert eye.is_counting.wait(60)
    service = serve(SimulatedEvaluator(parse_target("simulated:a40")))
    inspection = service.inspection(job_id, 0, COUNTERS)
    assert inspection.state is InspectionState.PENDING
    assert "no worker of this server" in inspection.reason


def test_a_service_without_runners_keeps_what_is_asked(store: Store) -> None:
    service = Service(store, LocalDispatcher([evaluator()]))
    job, _ = service.submit(spec())
    with pytest.raises(NotFound, match="it has no trials yet"):
        service.ask_inspection(job.id, 0, COUNTERS)
    with store.read() as session:
        assert inspections.next_pending(session, TARGET, urgent_only=False) is None
